// Members of the crowd by franz-go: `crowd BOOTSTRAP GROUP`; the lines are those of tests/cluster/crowd_members.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	commitEvery = 500 * time.Millisecond
	failedPause = time.Second
)

var output sync.Mutex

func now() float64 { return float64(time.Now().UnixMicro()) / 1e6 }

func tell(name, what string, more ...any) {
	line, err := json.Marshal(append([]any{now(), name, what}, more...))
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func named(partitions map[string][]int32) []string {
	names := []string{}
	for topic, indexes := range partitions {
		for _, index := range indexes {
			names = append(names, fmt.Sprintf("%s-%d", topic, index))
		}
	}
	return names
}

type position struct {
	topic string
	index int32
}

// Rebalances wait while records are polled and told, so the two never touch `positions` together.
type member struct {
	name      string
	positions map[position]int64
	ctx       context.Context
	stop      context.CancelFunc
}

func (one *member) forget(partitions map[string][]int32) {
	for topic, indexes := range partitions {
		for _, index := range indexes {
			delete(one.positions, position{topic, index})
		}
	}
}

func (one *member) commit(client *kgo.Client) {
	if len(one.positions) == 0 {
		return
	}
	sent := map[string]map[int32]kgo.EpochOffset{}
	for at, offset := range one.positions {
		if sent[at.topic] == nil {
			sent[at.topic] = map[int32]kgo.EpochOffset{}
		}
		sent[at.topic][at.index] = kgo.EpochOffset{Epoch: -1, Offset: offset}
	}
	began := now()
	within, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var rows []any
	var refused string
	client.CommitOffsetsSync(within, sent,
		func(_ *kgo.Client, request *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, err error) {
			if err != nil {
				refused = err.Error()
				return
			}
			for _, topic := range answer.Topics {
				for _, partition := range topic.Partitions {
					at := position{topic.Topic, partition.Partition}
					if partition.ErrorCode != 0 {
						refused = fmt.Sprintf("error %d", partition.ErrorCode)
					} else if offset, is := sent[topic.Topic][partition.Partition]; is {
						rows = append(rows, []any{fmt.Sprintf("%s-%d", at.topic, at.index), offset.Offset})
						delete(one.positions, at)
					}
				}
			}
		})
	if refused != "" {
		tell(one.name, "refused", refused) // tried again, if it still owns them
	}
	if len(rows) > 0 {
		tell(one.name, "committed", began, rows)
	}
}

// After an error that a consumer does not survive there is another one.
func (one *member) run(bootstrap, group, protocol, subscription, instance, rack string) {
	for one.ctx.Err() == nil {
		client := one.subscribed(bootstrap, group, protocol, subscription, instance, rack)
		if err := one.read(client); err != nil {
			tell(one.name, "failed", err.Error())
			select {
			case <-one.ctx.Done():
			case <-time.After(failedPause):
			}
		}
		client.CloseAllowingRebalance()
	}
	tell(one.name, "left")
}

func (one *member) subscribed(bootstrap, group, protocol, subscription, instance, rack string) *kgo.Client {
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.ClientID(one.name),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(strings.Split(subscription, ",")...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.MetadataMaxAge(5 * time.Second),
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.Rack(rack),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			tell(one.name, "assigned", named(partitions))
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, client *kgo.Client, partitions map[string][]int32) {
			one.commit(client)
			one.forget(partitions)
			tell(one.name, "revoked", named(partitions))
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			one.forget(partitions)
			tell(one.name, "lost", named(partitions))
		}),
	}
	if strings.HasPrefix(subscription, "^") {
		options = append(options, kgo.ConsumeRegex())
	}
	if instance != "-" {
		options = append(options, kgo.InstanceID(instance))
	}
	if protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	} else {
		options = append(options, kgo.Balancers(kgo.CooperativeStickyBalancer()),
			kgo.SessionTimeout(10*time.Second), kgo.HeartbeatInterval(time.Second))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	return client
}

func (one *member) read(client *kgo.Client) error {
	next := time.Now().Add(commitEvery)
	for one.ctx.Err() == nil {
		within, cancel := context.WithTimeout(one.ctx, 200*time.Millisecond)
		fetches := client.PollRecords(within, 100)
		cancel()
		fetches.EachRecord(func(record *kgo.Record) {
			one.positions[position{record.Topic, record.Partition}] = record.Offset + 1
			tell(one.name, "read", fmt.Sprintf("%s-%d", record.Topic, record.Partition), record.Offset)
		})
		var failed *kerr.Error
		for _, fetch := range fetches.Errors() {
			if errors.As(fetch.Err, &failed) && !failed.Retriable {
				return fetch.Err
			}
		}
		if time.Now().After(next) {
			one.commit(client)
			next = time.Now().Add(commitEvery)
		}
		client.AllowRebalance()
	}
	return nil
}

func main() {
	members := map[string]*member{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Split(lines.Text(), " ")
		if words[0] == "start" {
			ctx, stop := context.WithCancel(context.Background())
			one := &member{words[1], map[position]int64{}, ctx, stop}
			members[words[1]] = one
			go one.run(os.Args[1], os.Args[2], words[2], words[3], words[4], words[5])
		} else {
			members[words[1]].stop()
			delete(members, words[1])
		}
	}
}
