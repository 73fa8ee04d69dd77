// A service's tests with franz-go; `go test`.
package billing

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func client(t *testing.T, broker *Barnabas, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	options = append(options, kgo.SeedBrokers(broker.Bootstrap), kgo.AllowAutoTopicCreation(), kgo.ClientID("billing"),
		kgo.MetadataMinAge(100*time.Millisecond)) // after a lost answer it waits so long, by default 5 s
	made, err := kgo.NewClient(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(made.Close)
	return made
}

func send(ctx context.Context, t *testing.T, made *kgo.Client, values ...string) {
	t.Helper()
	for _, value := range values {
		record := &kgo.Record{Topic: "orders", Value: []byte(value)}
		if err := made.ProduceSync(ctx, record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func end(ctx context.Context, t *testing.T, made *kgo.Client) int64 {
	t.Helper()
	ends, err := kadm.NewClient(made).ListEndOffsets(ctx, "orders")
	if err != nil {
		t.Fatal(err)
	}
	offset, _ := ends.Lookup("orders", 0)
	return offset.Offset
}

func must(t *testing.T, broker *Barnabas, method, path string, body any) map[string]any {
	t.Helper()
	answer, err := broker.Ask(method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func TestBilling(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	broker := Start(t)

	// Its answer is lost twice, and the client sends again: the records are there once.
	fault := must(t, broker, "POST", "rules", map[string]any{"effect": "cut", "api": "Produce", "when": "after", "times": 2})
	producer := client(t, broker)
	send(ctx, t, producer, "a", "b", "c")
	if got := end(ctx, t, producer); got != 3 {
		t.Fatalf("%d records", got)
	}
	if fired := must(t, broker, "DELETE", "rules/1", nil)["fired"]; fired != 2.0 || fault["id"] != 1.0 {
		t.Fatalf("the fault fired %v times", fired)
	}

	// A group reads to the end and commits.
	consumer := client(t, broker, kgo.ConsumerGroup("billing"), kgo.ConsumeTopics("orders"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for seen := 0; seen < 3; {
		seen += consumer.PollFetches(ctx).NumRecords()
	}
	if err := consumer.CommitUncommittedOffsets(ctx); err != nil {
		t.Fatal(err)
	}
	must(t, broker, "GET", "groups/billing/wait?lag=0&members=1&timeout_ms=30000", nil)
	consumer.Close()

	// Eight days later its offsets have expired; then everything is put back. Both cut the connections of clients, and
	// franz-go finds no coordinator by one that was cut: so new clients ask.
	folder := must(t, broker, "POST", "snapshots", map[string]any{})["folder"]
	must(t, broker, "POST", "clock", map[string]any{"advance_ms": 8 * 86_400_000})
	offsets, err := kadm.NewClient(client(t, broker)).FetchOffsets(ctx, "billing")
	if err != nil || len(offsets) != 0 {
		t.Fatalf("%v, %v", offsets, err)
	}
	must(t, broker, "POST", "restore", map[string]any{"folder": folder})
	offsets, err = kadm.NewClient(client(t, broker)).FetchOffsets(ctx, "billing")
	if committed, _ := offsets.Lookup("orders", 0); err != nil || committed.At != 3 {
		t.Fatalf("%v, %v", offsets, err)
	}
}
