// A member of a group, which prints `PARTITION OFFSET` for each record and commits what it has printed:
// `go run ./livereader HOST:PORT TOPIC MODE INSTANCE`, as live_reader.py.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	bootstrap, topic, mode, instance := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	balancer := kgo.RangeBalancer()
	if mode == "cooperative" {
		balancer = kgo.CooperativeStickyBalancer()
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(bootstrap),
		kgo.ConsumerGroup(topic),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.SessionTimeout(10 * time.Second),
		kgo.HeartbeatInterval(200 * time.Millisecond),
		kgo.Balancers(balancer),
	}
	if instance != "-" {
		options = append(options, kgo.InstanceID(instance))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx := context.Background()
	for {
		client.PollRecords(ctx, 5).EachRecord(func(record *kgo.Record) {
			fmt.Println(record.Partition, record.Offset)
		})
		within, cancel := context.WithTimeout(ctx, 5*time.Second)
		if err := client.CommitUncommittedOffsets(within); err != nil {
			fmt.Fprintln(os.Stderr, "refused:", err)
		}
		cancel()
	}
}
