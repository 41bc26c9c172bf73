package floodmark;

import java.io.ByteArrayOutputStream;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;

/** A watermark record and its one encoding, as SPEC.md says under "On the wire". Null where the schema has null. */
public record Mark(
        String source, long epoch, long sequence, Long watermark, Status status, Membership membership, int partitions,
        Long records, long emittedAt, Long processingTimeWatermark, Long lease, Map<String, Long> percentiles,
        Holder holder) implements Serializable {

    static final byte[] PREFIX = "__floodmark__/".getBytes(StandardCharsets.US_ASCII);
    public static final String HEADER = "floodmark";
    public static final long FIRST_TIME = -62135596800000L;
    public static final long END_OF_TIME = 253402300799999L;
    private static final byte[] HEAD = HexFormat.of().parseHex("c3019d9cb4fc23089ed5");
    private static final int MOST_BYTES = 1024;

    public enum Status { ACTIVE, IDLE, ENDED }

    public record Membership(int version, int size) implements Serializable {}

    public record Holder(String topic, Integer partition, String source, String stage) implements Serializable {}

    /** A mark that this reader cannot read; the message says why. */
    public static final class Unreadable extends Exception {
        Unreadable(String reason) {
            super(reason);
        }
    }

    /** Tells by the key alone whether a record is a mark. */
    public static boolean isMark(byte[] key) {
        return key != null && key.length >= PREFIX.length && Arrays.equals(key, 0, PREFIX.length, PREFIX, 0, PREFIX.length);
    }

    public static String sourceOf(byte[] key) throws Unreadable {
        return text(Arrays.copyOfRange(key, PREFIX.length, key.length), 200);
    }

    public byte[] key() {
        return concatenated(PREFIX, source.getBytes(StandardCharsets.UTF_8));
    }

    public static Mark decode(byte[] key, byte[] value) throws Unreadable {
        require(value != null && value.length <= MOST_BYTES, "no value, or too long");
        require(value.length > HEAD.length && Arrays.equals(value, 0, HEAD.length, HEAD, 0, HEAD.length), "another format");
        Mark mark = new Body(ByteBuffer.wrap(value, HEAD.length, value.length - HEAD.length)).mark();
        mark.requireRanges();
        require(mark.source.equals(sourceOf(key)), "of another source than its key's");
        require(Arrays.equals(mark.encode(), value), "not in the canonical form");
        return mark;
    }

    public byte[] encode() {
        Out out = new Out();
        out.writeBytes(HEAD);
        out.text(source);
        out.number(epoch);
        out.number(sequence);
        out.optional(watermark);
        out.number(status.ordinal());
        out.number(membership.version);
        out.number(membership.size);
        out.number(partitions);
        out.optional(records);
        out.number(emittedAt);
        out.optional(processingTimeWatermark);
        out.optional(lease);
        if (out.present(percentiles)) {
            if (!percentiles.isEmpty()) {
                out.number(percentiles.size());
                percentiles.forEach((percent, time) -> {
                    out.text(percent);
                    out.number(time);
                });
            }
            out.number(0);
        }
        if (out.present(holder)) {
            out.text(holder.topic);
            out.optional(holder.partition == null ? null : holder.partition.longValue());
            out.optional(holder.source);
            out.optional(holder.stage);
        }
        return out.toByteArray();
    }

    private void requireRanges() throws Unreadable {
        require(epoch >= 0 && sequence >= 0 && (records == null || records >= 0), "a negative number");
        require(membership.version >= 1 && membership.size >= 1 && partitions >= 1, "a version, size or partitions below 1");
        require(isTime(emittedAt), "emitted_at is no time");
        require(watermark == null || isTime(watermark), "watermark is no time");
        require(processingTimeWatermark == null || isTime(processingTimeWatermark), "processing_time_watermark is no time");
        require(lease == null || (lease >= 1 && lease <= END_OF_TIME), "lease");
        if (percentiles != null) {
            for (Map.Entry<String, Long> entry : percentiles.entrySet()) {
                require(entry.getKey().matches("[1-9][0-9]?|100") && isTime(entry.getValue()), "percentiles");
            }
        }
        require(holder == null || holder.partition == null || holder.partition >= 0, "holder.partition");
    }

    public static boolean isTime(long time) {
        return FIRST_TIME <= time && time <= END_OF_TIME;
    }

    private static void require(boolean holds, String otherwise) throws Unreadable {
        if (!holds) {
            throw new Unreadable(otherwise);
        }
    }

    private static String text(byte[] bytes, int most) throws Unreadable {
        require(bytes.length >= 1 && bytes.length <= most, "a text of " + bytes.length + " bytes");
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
        } catch (CharacterCodingException notText) {
            throw new Unreadable("not UTF-8");
        }
    }

    private static byte[] concatenated(byte[] first, byte[] second) {
        return ByteBuffer.allocate(first.length + second.length).put(first).put(second).array();
    }

    /** Avro's binary encoding, as much of it as a mark needs. */
    private record Body(ByteBuffer in) {

        Mark mark() throws Unreadable {
            Mark mark = new Mark(
                    text(200), number(), number(), optional(), Status.values()[choice(3)],
                    new Membership(integer(), integer()), integer(), optional(), number(), optional(), optional(), choice(2) == 0 ? null : percentiles(),
                    choice(2) == 0 ? null : holder());
            require(!in.hasRemaining(), "a byte behind the body");
            return mark;
        }

        private Map<String, Long> percentiles() throws Unreadable {
            Map<String, Long> found = new LinkedHashMap<>();
            long count = number();
            require(count >= 0 && count <= 100, "a map block of " + count);
            for (long left = count; left > 0; left--) {
                require(found.put(text(3), number()) == null, "a percent twice");
            }
            require(count == 0 || number() == 0, "two map blocks");
            return found;
        }

        private Holder holder() throws Unreadable {
            return new Holder(
                    text(249), choice(2) == 0 ? null : integer(), choice(2) == 0 ? null : text(200),
                    choice(2) == 0 ? null : text(200));
        }

        private long number() throws Unreadable {
            long bits = 0;
            for (int shift = 0; shift < 64; shift += 7) {
                require(in.hasRemaining(), "cut off");
                byte next = in.get();
                bits |= (long) (next & 0x7f) << shift;
                if (next >= 0) {
                    return bits >>> 1 ^ -(bits & 1);
                }
            }
            throw new Unreadable("a varint of more than 64 bits");
        }

        private int integer() throws Unreadable {
            long found = number();
            require(found == (int) found, "an int of more than 32 bits");
            return (int) found;
        }

        private int choice(int of) throws Unreadable {
            long found = number();
            require(found >= 0 && found < of, "branch or symbol " + found);
            return (int) found;
        }

        private Long optional() throws Unreadable {
            return choice(2) == 0 ? null : (Long) number();
        }

        private String text(int most) throws Unreadable {
            long length = number();
            require(length >= 1 && length <= Math.min(most, in.remaining()), "a text of " + length + " bytes");
            byte[] bytes = new byte[(int) length];
            in.get(bytes);
            return Mark.text(bytes, most);
        }
    }

    private static final class Out extends ByteArrayOutputStream {

        void number(long value) {
            long bits = value << 1 ^ value >> 63;
            while ((bits & ~0x7fL) != 0) {
                write((int) (bits & 0x7f | 0x80));
                bits >>>= 7;
            }
            write((int) bits);
        }

        void text(String text) {
            byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
            number(bytes.length);
            writeBytes(bytes);
        }

        boolean present(Object value) {
            number(value == null ? 0 : 1);
            return value != null;
        }

        void optional(Long value) {
            if (present(value)) {
                number(value);
            }
        }

        void optional(String value) {
            if (present(value)) {
                text(value);
            }
        }
    }
}
