package floodmark;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.io.Serializable;

/** What an engine keeps of a topic between restarts: the marks, and how far they have brought it. */
public final class TopicWatermark implements Serializable {

    private final Topic topic = new Topic(null);
    private long handedOn = Long.MIN_VALUE;

    /** Applies a record with a mark's key. */
    public void apply(byte[] key, byte[] value, int partition, long offset, long logTime) {
        try {
            topic.apply(Mark.decode(key, value), partition, logTime);
        } catch (Mark.Unreadable unreadable) {
            topic.applyUnreadable(sourceOrNull(key), partition, offset);
        }
    }

    private static String sourceOrNull(byte[] key) {
        try {
            return Mark.sourceOf(key);
        } catch (Mark.Unreadable nobody) {
            return null;
        }
    }

    /** The watermark of the topic after a mark, where it is higher than ever; else null. What follows the end is refused. */
    public Long advance() {
        return advance(topic.progress());
    }

    /** The same of one partition; use one object for each. */
    public Long advance(int partition) {
        return advance(topic.progress(partition));
    }

    private Long advance(Topic.Progress now) {
        long watermark = switch (now.kind()) {
            case KNOWN -> now.watermark();
            case ENDED -> Mark.END_OF_TIME;
            case IDLE, UNKNOWN -> Long.MIN_VALUE;
        };
        if (handedOn == Mark.END_OF_TIME && watermark != handedOn) {
            throw new IllegalStateException("all sources had ended, and one writes again: begin with a new TopicWatermark");
        }
        if (watermark <= handedOn) {
            return null;
        }
        handedOn = watermark;
        return watermark;
    }

    public long handedOn() {
        return handedOn;
    }

    public byte[] toBytes() throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
            out.writeObject(this);
        }
        return bytes.toByteArray();
    }

    public static TopicWatermark of(byte[] bytes) throws IOException, ClassNotFoundException {
        try (ObjectInputStream in = new ObjectInputStream(new ByteArrayInputStream(bytes))) {
            return (TopicWatermark) in.readObject();
        }
    }
}
