// Logs in by each case (files *.properties of Kafka's clients), writes records, reads them back, and says how that
// ended; `java -cp KAFKA_JARS Secured.java FOLDER`.
import java.io.File;
import java.io.FileReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Secured {
    static String run(Properties settings) throws Exception {
        String topic = settings.getProperty("story.topic");
        long forMs = (long) (1000 * Double.parseDouble(settings.getProperty("story.seconds")));
        try (Admin admin = Admin.create(settings)) {
            admin.describeCluster().nodes().get(60, TimeUnit.SECONDS);
        } catch (ExecutionException error) {
            return "refused: " + error.getCause().getMessage();
        }
        int sent = 0;
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            long until = System.currentTimeMillis() + forMs;
            while (sent == 0 || System.currentTimeMillis() < until) {
                producer.send(new ProducerRecord<>(topic, String.valueOf(sent))).get(60, TimeUnit.SECONDS);
                sent++;
                Thread.sleep(50);
            }
        }
        int read = 0;
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            long until = System.currentTimeMillis() + 60_000;
            while (read < sent && System.currentTimeMillis() < until) {
                read += consumer.poll(Duration.ofMillis(500)).count();
            }
        }
        return read == sent ? "ok" : "failed: " + read + " of " + sent + " records were read";
    }

    public static void main(String[] arguments) throws Exception {
        List<Thread> all = new ArrayList<>();
        for (File file : new File(arguments[0]).listFiles((folder, name) -> name.endsWith(".properties"))) {
            Properties settings = new Properties();
            try (FileReader reader = new FileReader(file)) {
                settings.load(reader);
            }
            Thread one = new Thread(() -> {
                String told;
                try {
                    told = run(settings);
                } catch (Exception error) {
                    told = "failed: " + error;
                }
                String name = settings.getProperty("story.name");
                synchronized (System.out) {
                    System.out.println(name + "\t" + told.lines().findFirst().orElse(""));
                }
            });
            one.start();
            all.add(one);
        }
        for (Thread one : all) {
            one.join();
        }
        System.exit(0);
    }
}
