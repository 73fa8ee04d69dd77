// A story told by franz-go, a client that checks every answer strictly. It ends with exit code 1 and a sentence
// at the first thing that is not as it must be; `go run . HOST:PORT,… TOPIC`.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	partitions = 3
	perCodec   = 60
)

func must(what string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

func check(holds bool, format string, arguments ...any) {
	if !holds {
		fmt.Fprintf(os.Stderr, format+"\n", arguments...)
		os.Exit(1)
	}
}

func client(bootstrap string, options ...kgo.Opt) *kgo.Client {
	common := []kgo.Opt{kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.HeartbeatInterval(200 * time.Millisecond)}
	made, err := kgo.NewClient(append(common, options...)...)
	must("client", err)
	return made
}

// Record `number` of the story, of which the reader knows everything.
func record(topic string, number int) *kgo.Record {
	return &kgo.Record{
		Topic:     topic,
		Partition: int32(number % partitions),
		Key:       []byte(fmt.Sprintf("key %d", number)),
		Value:     []byte(fmt.Sprintf("value %06d", number)),
		Headers:   []kgo.RecordHeader{{Key: "number", Value: []byte(fmt.Sprint(number))}},
		Timestamp: time.UnixMilli(1_700_000_000_000 + int64(number)),
	}
}

// Every codec, keys, headers and timestamps, from an idempotent producer with acks=all.
func produce(ctx context.Context, bootstrap, topic string) int {
	codecs := []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	}
	count := 0
	for _, codec := range codecs {
		producer := client(bootstrap, kgo.ProducerBatchCompression(codec), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		var records []*kgo.Record
		for range perCodec {
			records = append(records, record(topic, count))
			count++
		}
		must("produce", producer.ProduceSync(ctx, records...).FirstErr())
		producer.Close()
	}
	return count
}

// Reads until count records came; each must be the one after the last of its partition.
func read(ctx context.Context, consumer *kgo.Client, count int, next map[int32]int64) {
	for count > 0 {
		fetches := consumer.PollFetches(ctx)
		must("fetch", fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			check(record.Offset == next[record.Partition], "offset %d, not %d", record.Offset, next[record.Partition])
			number := record.Offset*partitions + int64(record.Partition)
			check(string(record.Value) == fmt.Sprintf("value %06d", number), "value %q at %d", record.Value, record.Offset)
			check(string(record.Key) == fmt.Sprintf("key %d", number), "key %q", record.Key)
			check(record.Timestamp.UnixMilli() == 1_700_000_000_000+number, "timestamp %v", record.Timestamp)
			check(len(record.Headers) == 1 && record.Headers[0].Key == "number", "headers %v", record.Headers)
			next[record.Partition]++
			count--
		})
	}
}

func member(bootstrap, topic, group string, options ...kgo.Opt) *kgo.Client {
	return client(bootstrap, append([]kgo.Opt{
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.DisableAutoCommit(),
	}, options...)...)
}

func main() {
	bootstrap, topic := os.Args[1], os.Args[2]
	group := topic
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()

	plain := client(bootstrap)
	defer plain.Close()
	admin := kadm.NewClient(plain)
	setting := "-1" // the story's records are old: retention would be right to take them
	_, err := admin.CreateTopic(ctx, partitions, -1, map[string]*string{"retention.ms": &setting}, topic)
	must("create topic", err)
	_, err = admin.CreateTopic(ctx, partitions, -1, nil, topic)
	check(err == kerr.TopicAlreadyExists, "creating it twice answered %v", err)
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	must("describe configs", err)
	described, err := configs.On(topic, nil)
	must("configs of the topic", err)
	for _, config := range described.Configs {
		check(config.Key != "retention.ms" || config.MaybeValue() == setting, "retention.ms is %s", config.MaybeValue())
	}

	count := produce(ctx, bootstrap, topic)
	ends, err := admin.ListEndOffsets(ctx, topic)
	must("list offsets", err)
	ends.Each(func(offset kadm.ListedOffset) {
		check(offset.Offset == int64(count/partitions), "partition %d ends at %d", offset.Partition, offset.Offset)
	})
	after, err := admin.ListOffsetsAfterMilli(ctx, 1_700_000_000_000+30, topic)
	must("list offsets by time", err)
	first, _ := after.Lookup(topic, 0)
	check(first.Offset == 10, "offset by time is %d", first.Offset)

	// One member reads and commits, leaves; the next one finds nothing to read again.
	next := map[int32]int64{}
	one := member(bootstrap, topic, group)
	read(ctx, one, count, next)
	must("commit", one.CommitUncommittedOffsets(ctx))

	// Two members share, without taking everything back (cooperative).
	lost := make(chan int, 100)
	two := member(bootstrap, topic, group, kgo.OnPartitionsLost(func(context.Context, *kgo.Client, map[string][]int32) {
		lost <- 1
	}))
	for {
		poll, cancelPoll := context.WithTimeout(ctx, 100*time.Millisecond)
		one.PollFetches(poll)
		two.PollFetches(poll)
		cancelPoll()
		must("time", ctx.Err())
		groups, err := admin.DescribeGroups(ctx, group)
		must("describe group", err)
		shares := []int{}
		for _, one := range groups[group].Members {
			if assigned, ok := one.Assigned.AsConsumer(); ok {
				shares = append(shares, 0)
				for _, topic := range assigned.Topics {
					shares[len(shares)-1] += len(topic.Partitions)
				}
			}
		}
		sort.Ints(shares)
		if groups[group].State == "Stable" && len(shares) == 2 && shares[0] == 1 && shares[1] == 2 {
			break
		}
	}
	one.LeaveGroup()
	one.Close()
	two.LeaveGroup()
	two.Close()
	check(len(lost) == 0, "partitions were lost")

	more := client(bootstrap, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for range partitions {
		must("produce", more.ProduceSync(ctx, record(topic, count)).FirstErr())
		count++
	}
	more.Close()
	lags, err := admin.Lag(ctx, group)
	must("lag", err)
	check(lags[group].Lag.Total() == partitions, "lag is %d", lags[group].Lag.Total())
	three := member(bootstrap, topic, group)
	read(ctx, three, partitions, next)
	must("commit", three.CommitUncommittedOffsets(ctx))
	three.LeaveGroup()
	three.Close()

	_, err = admin.DeleteGroup(ctx, group)
	must("delete group", err)
	_, err = admin.DeleteTopic(ctx, topic)
	must("delete topic", err)
	fmt.Printf("%d records\n", count)
}
