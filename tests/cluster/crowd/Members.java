import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.time.Instant;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.StringJoiner;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Members of the crowd by Java's consumer: `java Members BOOTSTRAP GROUP`; the lines are those of crowd_members.py. */
public class Members {
    static final long COMMIT_MS = 500;
    static final long FAILED_PAUSE_MS = 1000;
    static final Map<String, Member> MEMBERS = new ConcurrentHashMap<>();

    static synchronized void tell(String name, String what, String more) {
        Instant now = Instant.now();
        System.out.printf("[%d.%06d, \"%s\", \"%s\"%s]%n", now.getEpochSecond(), now.getNano() / 1000, name, what, more);
        System.out.flush();
    }

    static String named(Collection<TopicPartition> partitions) {
        StringJoiner names = new StringJoiner(", ", ", [", "]");
        partitions.forEach(each -> names.add("\"" + each + "\""));
        return names.toString();
    }

    static class Member extends Thread implements ConsumerRebalanceListener {
        final String bootstrap, group, name, protocol, subscription, instance, rack;
        final Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        volatile boolean stopped;
        KafkaConsumer<byte[], byte[]> consumer;

        Member(String bootstrap, String group, String[] words) {
            this.bootstrap = bootstrap;
            this.group = group;
            name = words[1];
            protocol = words[2];
            subscription = words[3];
            instance = words[4];
            rack = words[5];
        }

        /** After an error that a consumer does not survive there is another one. */
        @Override
        public void run() {
            while (!stopped) {
                consumer = subscribed();
                try {
                    read();
                } catch (RuntimeException error) {
                    tell(name, "failed", ", \"" + error.getClass().getSimpleName() + "\"");
                    pause();
                }
                try {
                    consumer.close();
                } catch (RuntimeException error) {
                    tell(name, "failed", ", \"" + error.getClass().getSimpleName() + "\"");
                }
            }
            tell(name, "left", "");
        }

        static void pause() {
            try {
                Thread.sleep(FAILED_PAUSE_MS);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }

        KafkaConsumer<byte[], byte[]> subscribed() {
            Properties properties = new Properties();
            properties.put("bootstrap.servers", bootstrap);
            properties.put("group.id", group);
            properties.put("client.id", name);
            properties.put("client.rack", rack);
            properties.put("auto.offset.reset", "earliest");
            properties.put("enable.auto.commit", "false");
            properties.put("metadata.max.age.ms", "5000");
            properties.put("default.api.timeout.ms", "20000");
            properties.put("group.protocol", protocol);
            if (protocol.equals("classic")) {
                properties.put("session.timeout.ms", "10000");
                properties.put("heartbeat.interval.ms", "1000");
                properties.put("partition.assignment.strategy",
                    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
            }
            if (!instance.equals("-")) properties.put("group.instance.id", instance);
            KafkaConsumer<byte[], byte[]> made =
                new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            if (!subscription.startsWith("^")) made.subscribe(List.of(subscription.split(",")), this);
            else if (protocol.equals("classic")) made.subscribe(Pattern.compile(subscription), this);
            else made.subscribe(new SubscriptionPattern(subscription), this);
            return made;
        }

        void read() {
            long nextCommit = System.nanoTime() + COMMIT_MS * 1_000_000;
            while (!stopped) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    TopicPartition partition = new TopicPartition(record.topic(), record.partition());
                    positions.put(partition, new OffsetAndMetadata(record.offset() + 1));
                    tell(name, "read", ", \"" + partition + "\", " + record.offset());
                }
                if (System.nanoTime() > nextCommit) {
                    commit();
                    nextCommit = System.nanoTime() + COMMIT_MS * 1_000_000;
                }
            }
        }

        void commit() {
            if (positions.isEmpty()) return;
            Map<TopicPartition, OffsetAndMetadata> sent = new HashMap<>(positions);
            Instant began = Instant.now();
            try {
                consumer.commitSync(sent);
            } catch (KafkaException error) {
                tell(name, "refused", ", \"" + error.getClass().getSimpleName() + "\"");
                return; // tried again, if it still owns them
            }
            positions.clear();
            StringJoiner rows = new StringJoiner(", ", "[", "]");
            sent.forEach((partition, offset) -> rows.add("[\"" + partition + "\", " + offset.offset() + "]"));
            tell(name, "committed", String.format(", %d.%06d, %s", began.getEpochSecond(), began.getNano() / 1000, rows));
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            tell(name, "assigned", named(partitions));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            commit();
            positions.keySet().removeAll(partitions);
            tell(name, "revoked", named(partitions));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            positions.keySet().removeAll(partitions);
            tell(name, "lost", named(partitions));
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("start")) {
                Member member = new Member(arguments[0], arguments[1], words);
                MEMBERS.put(words[1], member);
                member.setDaemon(true);
                member.start();
            } else {
                MEMBERS.remove(words[1]).stopped = true;
            }
        }
    }
}
