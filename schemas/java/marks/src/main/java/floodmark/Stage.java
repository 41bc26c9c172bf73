package floodmark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.PropertyNamingStrategies;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.header.Header;

/** One that reads some topics: says of each record what it is, and the watermarks behind it. */
final class Stage {

    static final ObjectMapper JSON =
            new ObjectMapper().setPropertyNamingStrategy(PropertyNamingStrategies.SNAKE_CASE);

    private final Map<String, Topic> topics = new TreeMap<>();
    private Long output;

    Stage(List<String> names, Integer percent) {
        names.forEach(name -> topics.put(name, new Topic(percent)));
    }

    /** Takes the next record of a partition. */
    ObjectNode take(String name, int partition, long offset, long logTime, byte[] key, byte[] value, Iterable<Header> headers) {
        ObjectNode line = JSON.createObjectNode().put("topic", name).put("partition", partition).put("offset", offset);
        Topic topic = topics.get(name);
        if (Mark.isMark(key)) {
            takeMark(topic, partition, offset, logTime, key, value, line);
        } else {
            line.put("is", "data");
            line.put("time", Headers.timeIn(headers, "floodmark-time"));
            line.put("substream", Headers.timeIn(headers, "floodmark-substream"));
        }
        Topic.Progress stage = Topic.Progress.over(topics.values().stream().map(Topic::progress).toList());
        Long now = switch (stage.kind()) {
            case KNOWN -> (Long) stage.watermark();
            case ENDED -> (Long) Mark.END_OF_TIME;
            case IDLE, UNKNOWN -> null;
        };
        if (now != null && (output == null || now > output)) {
            output = now;
        }
        line.set("partition_is", shown(topic.progress(partition)));
        line.set("topic_is", shown(topic.progress()));
        return line.put("watermark", output);
    }

    private static void takeMark(
            Topic topic, int partition, long offset, long logTime, byte[] key, byte[] value, ObjectNode line) {
        try {
            Mark mark = Mark.decode(key, value);
            line.put("is", topic.apply(mark, partition, logTime) ? "mark" : "ignored");
            line.set("mark", JSON.valueToTree(mark));
        } catch (Mark.Unreadable unreadable) {
            String source = null;
            try {
                source = Mark.sourceOf(key);
            } catch (Mark.Unreadable nobody) {
                line.put("key", nobody.getMessage());
            }
            topic.applyUnreadable(source, partition, offset);
            line.put("is", "unreadable").put("reason", unreadable.getMessage());
        }
    }

    private static JsonNode shown(Topic.Progress progress) {
        return progress.kind() == Topic.Progress.Kind.KNOWN
                ? JSON.getNodeFactory().numberNode(progress.watermark())
                : JSON.getNodeFactory().textNode(progress.kind().name().toLowerCase());
    }
}
