// Transactions by franz-go until its standard input closes: `transactor HOST:PORT,… TOPIC ID`. Each writes one record to
// each partition of the topic; every fourth is aborted. One line for each says how it ended: `committed N`, `aborted N`,
// or `unknown N` if the client does not know it. After an error that a producer cannot go on with, there is a new one.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const partitions = 3

func newClient(bootstrap, id string) *kgo.Client {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.TransactionalID(id),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0),
		kgo.RetryTimeout(20*time.Second),
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return client
}

// How one transaction ended, and whether the producer can go on.
func one(client *kgo.Client, topic, id string, number int) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := client.BeginTransaction(); err != nil {
		return "aborted", err
	}
	var records []*kgo.Record
	for index := range partitions {
		records = append(records, &kgo.Record{
			Topic: topic, Partition: int32(index), Value: []byte(fmt.Sprintf("%s %d", id, number)),
		})
	}
	produced := client.ProduceSync(ctx, records...).FirstErr()
	if produced != nil || number%4 == 3 {
		if err := client.EndTransaction(ctx, kgo.TryAbort); err != nil {
			return "aborted", err // whoever follows under this id aborts it
		}
		return "aborted", produced
	}
	if err := client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return "unknown", err
	}
	return "committed", nil
}

func main() {
	bootstrap, topic, id := os.Args[1], os.Args[2], os.Args[3]
	ended := make(chan bool)
	go func() {
		os.Stdin.Read(make([]byte, 1))
		close(ended)
	}()
	client := newClient(bootstrap, id)
	for number := 0; ; number++ {
		select {
		case <-ended:
			client.Close()
			return
		default:
		}
		how, err := one(client, topic, id, number)
		fmt.Printf("%s %d\n", how, number)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%d: %v\n", number, err)
			client.Close()
			client = newClient(bootstrap, id)
		}
	}
}
