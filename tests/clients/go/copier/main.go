// Copies records from one topic to another, exactly once: `copier HOST:PORT NAME TRANSACTIONAL_ID SESSION_TIMEOUT_MS
// TRANSACTION_TIMEOUT_MS PAUSE`, as copier.py.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	recordsMax        = 20
	abortedEvery      = 3
	pausedTransaction = 2
	txnOffsetCommit   = 28 // the API key
)

// pauseBehindOffsets waits when the answer to the TxnOffsetCommit of the paused transaction has come. The session sends
// EndTxn next, without telling its user.
type pauseBehindOffsets struct{ armed atomic.Bool }

func (p *pauseBehindOffsets) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if key == txnOffsetCommit && err == nil && p.armed.CompareAndSwap(true, false) {
		pause()
	}
}

func pause() {
	fmt.Println("paused")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

func milliseconds(text string) time.Duration {
	number, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return time.Duration(number) * time.Millisecond
}

func isFenced(err error) bool {
	return errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch)
}

func main() {
	bootstrap, name, transactionalID := os.Args[1], os.Args[2], os.Args[3]
	sessionTimeout, transactionTimeout, pauseAt := milliseconds(os.Args[4]), milliseconds(os.Args[5]), os.Args[6]
	hook := &pauseBehindOffsets{}
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(bootstrap),
		kgo.TransactionalID(transactionalID),
		kgo.TransactionTimeout(transactionTimeout),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumerGroup(name),
		kgo.ConsumeTopics(name+"-in"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(sessionTimeout),
		kgo.RebalanceTimeout(sessionTimeout),
		kgo.HeartbeatInterval(200*time.Millisecond),
		kgo.RequireStableFetchOffsets(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.WithHooks(hook),
	)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	end := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		if isFenced(err) {
			fmt.Println("fenced")
			os.Exit(0)
		}
		os.Exit(1)
	}
	// Else it takes its id only when it has read something, and the open offsets of its predecessor stop that.
	if _, _, err := session.Client().ProducerID(ctx); err != nil {
		end(err)
	}
	for number := 1; ; number++ {
		fetches := session.PollRecords(ctx, recordsMax)
		fetches.EachError(func(_ string, _ int32, err error) { // it joins again by itself
			fmt.Fprintln(os.Stderr, err)
		})
		if fetches.NumRecords() == 0 {
			number--
			continue
		}
		if err := session.Begin(); err != nil {
			end(err)
		}
		produced := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(record *kgo.Record) {
			session.Produce(ctx, &kgo.Record{
				Topic:     name + "-out",
				Partition: record.Partition,
				Value:     append([]byte("copy of "), record.Value...),
			}, produced.Promise())
		})
		if err := produced.Err(); err != nil {
			end(err)
		}
		paused := number == pausedTransaction
		if paused && pauseAt == "produced" {
			pause()
		}
		if paused && pauseAt == "offsets" {
			hook.armed.Store(true)
		}
		wanted := kgo.TransactionEndTry(number%abortedEvery != 0)
		committed, err := session.End(ctx, wanted)
		switch {
		case err != nil:
			end(err)
		case committed:
			fmt.Println("committed")
		case wanted == kgo.TryCommit:
			fmt.Println("lost")
		default:
			fmt.Println("aborted")
		}
	}
}
