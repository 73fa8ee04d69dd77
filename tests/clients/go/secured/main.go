// Logs in by each case of a file (JSON), writes records, reads them back, and says how that ended; `secured CASES.json`.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type testCase struct {
	Name, Bootstrap, Mechanism, User, Password, Ca, Certificate, Topic string
	TokenUrl                                                           string `json:"token_url"`
	Seconds                                                            float64
}

func token(url string) func(context.Context) (oauth.Auth, error) {
	return func(context.Context) (oauth.Auth, error) {
		var told struct {
			Token string `json:"access_token"`
		}
		answer, err := http.Get(url)
		if err != nil {
			return oauth.Auth{}, err
		}
		defer answer.Body.Close()
		err = json.NewDecoder(answer.Body).Decode(&told)
		return oauth.Auth{Token: told.Token}, err
	}
}

func options(c testCase) ([]kgo.Opt, error) {
	made := []kgo.Opt{kgo.SeedBrokers(c.Bootstrap), kgo.ConsumerGroup(c.Topic), kgo.ConsumeTopics(c.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.AllowAutoTopicCreation()}
	if c.Ca != "" {
		authority, err := os.ReadFile(c.Ca)
		if err != nil {
			return nil, err
		}
		config := &tls.Config{RootCAs: x509.NewCertPool()}
		config.RootCAs.AppendCertsFromPEM(authority)
		if c.Certificate != "" {
			own, err := tls.LoadX509KeyPair(c.Certificate, c.Certificate)
			if err != nil {
				return nil, err
			}
			config.Certificates = []tls.Certificate{own}
		}
		made = append(made, kgo.DialTLSConfig(config))
	}
	switch c.Mechanism {
	case "PLAIN":
		made = append(made, kgo.SASL(plain.Auth{User: c.User, Pass: c.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		made = append(made, kgo.SASL(scram.Auth{User: c.User, Pass: c.Password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		made = append(made, kgo.SASL(scram.Auth{User: c.User, Pass: c.Password}.AsSha512Mechanism()))
	case "OAUTHBEARER":
		made = append(made, kgo.SASL(oauth.Oauth(token(c.TokenUrl))))
	}
	return made, nil
}

func run(c testCase) string {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	opts, err := options(c)
	if err != nil {
		return "wrong case: " + err.Error()
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return "wrong case: " + err.Error()
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return "refused: " + err.Error()
	}
	until := time.Now().Add(time.Duration(c.Seconds * float64(time.Second)))
	sent := 0
	for sent == 0 || time.Now().Before(until) {
		record := &kgo.Record{Topic: c.Topic, Value: []byte(fmt.Sprint(sent))}
		if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
			return "failed: " + err.Error()
		}
		sent++
		time.Sleep(50 * time.Millisecond)
	}
	for read := 0; read < sent; {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return fmt.Sprintf("failed: %d of %d records were read", read, sent)
		}
		read += fetches.NumRecords()
	}
	return "ok"
}

func main() {
	var cases []testCase
	text, err := os.ReadFile(os.Args[1])
	if err == nil {
		err = json.Unmarshal(text, &cases)
	}
	if err != nil {
		panic(err)
	}
	told := map[string]string{}
	var lock sync.Mutex
	var all sync.WaitGroup
	for _, each := range cases {
		all.Add(1)
		go func() {
			defer all.Done()
			result := run(each)
			lock.Lock()
			told[each.Name] = result
			lock.Unlock()
		}()
	}
	all.Wait()
	out, _ := json.Marshal(told)
	fmt.Println(string(out))
}
