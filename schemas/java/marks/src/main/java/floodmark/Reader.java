package floodmark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Prints a line of JSON for each record: what it is, and the watermarks behind it.
 *
 * <p>{@code Reader BOOTSTRAP_SERVERS TOPIC...} reads topics up to their ends. {@code Reader} alone takes records from standard
 * input, as SPEC.md says under "Conformance".
 */
final class Reader {

    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws IOException {
        if (arguments.length == 0) {
            readLines();
        } else {
            readKafka(arguments[0], List.of(arguments).subList(1, arguments.length));
        }
    }

    private static void readKafka(String servers, List<String> topics) {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", servers, "isolation.level", "read_committed",
                "max.partition.fetch.bytes", 1000);  // little at once, so that the partitions take turns
        Stage stage = new Stage(topics, null);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            List<TopicPartition> partitions = new ArrayList<>();
            topics.forEach(topic -> consumer.partitionsFor(topic).forEach(
                    found -> partitions.add(new TopicPartition(topic, found.partition()))));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(partition -> consumer.position(partition) < ends.get(partition))) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    OUT.println(stage.take(
                            record.topic(), record.partition(), record.offset(), record.timestamp(), record.key(),
                            record.value(), record.headers()));
                }
            }
        }
    }

    private static void readLines() throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Stage stage = null;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode given = Stage.JSON.readTree(line);
            if (given.has("topics")) {
                Integer percent = given.hasNonNull("percent") ? given.get("percent").asInt() : null;
                stage = new Stage(List.of(Stage.JSON.convertValue(given.get("topics"), String[].class)), percent);
            } else {
                OUT.println(stage.take(
                        given.get("topic").asText(), given.get("partition").asInt(), given.get("offset").asLong(),
                        given.get("log_time").asLong(), bytes(given.get("key")), bytes(given.get("value")), List.of()));
            }
        }
    }

    private static byte[] bytes(JsonNode hex) {
        return hex.isNull() ? null : HexFormat.of().parseHex(hex.asText());
    }
}
