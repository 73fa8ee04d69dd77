import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/** A broker for the tests of a class: it starts `barnabas`, and sends commands to its control API. */
public class Barnabas implements BeforeAllCallback, AfterAllCallback {
  private static final ObjectMapper JSON = new ObjectMapper();
  private final HttpClient client = HttpClient.newHttpClient();
  private final List<String> command =
      new ArrayList<>(List.of("barnabas", "start", "--profile", "ci", "--port", "0", "--json"));
  private Process process;
  private JsonNode ready;

  /** Settings are Kafka's, as "num.partitions=3". */
  public Barnabas(String... settings) {
    for (String setting : settings) command.addAll(List.of("--set", setting));
  }

  @Override
  public void beforeAll(ExtensionContext context) throws Exception {
    process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
    String line = process.inputReader().readLine();
    if (line == null) throw new IllegalStateException("the broker did not start; its log says why");
    ready = JSON.readTree(line);
  }

  @Override
  public void afterAll(ExtensionContext context) throws Exception {
    process.destroy();
    process.waitFor(20, TimeUnit.SECONDS);
  }

  public String bootstrap() {
    return ready.get("bootstrap").asText();
  }

  /** One command, as ask("POST", "rules", Map.of("effect", "cut")). What is refused is an exception with the reason. */
  public JsonNode ask(String method, String path, Map<String, ?> body) throws Exception {
    var content = body == null ? BodyPublishers.noBody() : BodyPublishers.ofString(JSON.writeValueAsString(body));
    var address = URI.create("http://" + ready.get("http").asText() + "/v1/control/" + path);
    var request = HttpRequest.newBuilder(address).method(method, content).header("Content-Type", "application/json");
    var answer = client.send(request.build(), BodyHandlers.ofString());
    JsonNode document = JSON.readTree(answer.body());
    if (answer.statusCode() >= 300) throw new IllegalStateException(document.at("/error/message").asText());
    return document;
  }
}
