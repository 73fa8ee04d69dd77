// A broker for a test in Go: it starts `barnabas`, and sends commands to its control API.
package billing

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"testing"
)

type Barnabas struct {
	Bootstrap string
	control   string
}

// Start returns when the broker serves. It ends with the test. Settings are Kafka's, as "num.partitions=3".
func Start(t *testing.T, settings ...string) *Barnabas {
	t.Helper()
	words := []string{"start", "--profile", "ci", "--port", "0", "--json"}
	for _, setting := range settings {
		words = append(words, "--set", setting)
	}
	command := exec.Command("barnabas", words...)
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(os.Interrupt)
		_ = command.Wait()
	})
	var ready struct{ Bootstrap, HTTP string }
	line, err := bufio.NewReader(output).ReadBytes('\n')
	if err != nil || json.Unmarshal(line, &ready) != nil {
		t.Fatal("the broker did not start; its log says why")
	}
	return &Barnabas{ready.Bootstrap, "http://" + ready.HTTP + "/v1/control/"}
}

// Ask sends one command, as Ask("POST", "rules", ...). What is refused is an error in the broker's own words.
func (b *Barnabas) Ask(method, path string, body any) (map[string]any, error) {
	var content bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&content).Encode(body); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequest(method, b.control+path, &content)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	document := map[string]any{}
	if err := json.NewDecoder(answer.Body).Decode(&document); err != nil {
		return nil, err
	}
	if answer.StatusCode >= 300 {
		return nil, fmt.Errorf("%v", document["error"])
	}
	return document, nil
}
