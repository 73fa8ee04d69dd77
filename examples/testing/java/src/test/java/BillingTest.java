import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.GroupAuthorizationException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** A service's tests with Apache Kafka's own client; `mvn test`. */
class BillingTest {
  @RegisterExtension static final Barnabas broker = new Barnabas();
  private static final TopicPartition ORDERS = new TopicPartition("orders", 0);

  private static Properties settings() {
    var settings = new Properties();
    settings.put("bootstrap.servers", broker.bootstrap());
    settings.put("group.id", "billing");
    settings.put("auto.offset.reset", "earliest");
    settings.put("enable.auto.commit", "false");
    return settings;
  }

  private static void send(String... values) throws Exception {
    try (var producer = new KafkaProducer<>(settings(), new StringSerializer(), new StringSerializer())) {
      for (String value : values) producer.send(new ProducerRecord<>("orders", value)).get();
    }
  }

  private static KafkaConsumer<String, String> consumer() {
    return new KafkaConsumer<>(settings(), new StringDeserializer(), new StringDeserializer());
  }

  @Test
  void aCommitThatIsRefusedIsMadeAgain() throws Exception {
    send("a", "b", "c");
    var error = Map.of("effect", "error", "api", "OffsetCommit", "error", "GROUP_AUTHORIZATION_FAILED", "times", 1);
    broker.ask("POST", "rules", error);
    try (var consumer = consumer()) {
      consumer.subscribe(List.of("orders"));
      for (int seen = 0; seen < 3; ) seen += consumer.poll(Duration.ofSeconds(1)).count();
      assertThrows(GroupAuthorizationException.class, consumer::commitSync);
      consumer.commitSync();
      assertEquals(0, broker.ask("GET", "groups/billing/wait?lag=0&members=1", null).get("lag").asInt());
    }
    String folder = broker.ask("POST", "snapshots", Map.of()).get("folder").asText();
    send("d");
    broker.ask("POST", "restore", Map.of("folder", folder));
    try (var consumer = consumer()) {
      assertEquals(3, consumer.endOffsets(List.of(ORDERS)).get(ORDERS));
      assertEquals(3, consumer.committed(java.util.Set.of(ORDERS)).get(ORDERS).offset());
    }
  }
}
