import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A source, as SPEC.md says under "Writers": {@code Writer BOOTSTRAP_SERVERS TOPIC SOURCE EPOCH SIZE [TRANSACTIONAL_ID]}.
 *
 * <p>It takes what to do from standard input, a line of JSON each: {@code send} with {@code partition}, {@code time} (event
 * time), {@code value}, where wanted {@code key} and {@code header: true} (the time is to stand in the header);
 * {@code watermark} with {@code time}; {@code idle}; {@code members} with {@code version} and {@code size}; {@code end};
 * {@code begin}, {@code commit} and {@code abort} of a transaction.
 */
final class Writer implements AutoCloseable {

    /** What an aborted transaction takes back. */
    private static final class State implements Cloneable {
        private Mark.Status status;
        private Long watermark;
        private int partitions;
        private int version = 1;
        private int size;
        private Map<Integer, Long> sequences = new HashMap<>();
        private Map<Integer, Long> records = new HashMap<>();

        State copy() throws CloneNotSupportedException {
            State copy = (State) clone();
            copy.sequences = new HashMap<>(sequences);
            copy.records = new HashMap<>(records);
            return copy;
        }
    }

    private final KafkaProducer<byte[], byte[]> producer;
    private final List<Future<?>> unacknowledged = new ArrayList<>();
    private final String topic;
    private final String source;
    private final long epoch;
    private State state = new State();
    private State before;

    private Writer(String servers, String topic, String source, long epoch, int size, String transactionalId) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", servers, "enable.idempotence", true));
        if (transactionalId != null) {
            settings.put("transactional.id", transactionalId);
        }
        producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        if (transactionalId != null) {
            producer.initTransactions();
        }
        this.topic = topic;
        this.source = source;
        this.epoch = epoch;
        state.size = size;
    }

    public static void main(String[] arguments) throws Exception {
        String id = arguments.length > 5 ? arguments[5] : null;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (Writer writer = new Writer(
                arguments[0], arguments[1], arguments[2], Long.parseLong(arguments[3]), Integer.parseInt(arguments[4]), id)) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                writer.act(Stage.JSON.readTree(line));
            }
        }
    }

    private void act(JsonNode step) throws Exception {
        switch (step.get("do").asText()) {
            case "send" -> send(step);
            case "watermark" -> {
                long time = step.get("time").asLong();
                state.watermark = state.watermark == null ? time : Math.max(state.watermark, time);
                mark(Mark.Status.ACTIVE);
            }
            case "idle" -> mark(Mark.Status.IDLE);
            case "end" -> mark(Mark.Status.ENDED);
            case "members" -> {
                state.version = step.get("version").asInt();
                state.size = step.get("size").asInt();
                mark(state.status == null ? Mark.Status.ACTIVE : state.status);
            }
            case "begin" -> {
                before = state.copy();
                producer.beginTransaction();
            }
            case "commit" -> {
                awaitAcknowledgements();
                producer.commitTransaction();
            }
            case "abort" -> {
                awaitAcknowledgements();
                producer.abortTransaction();
                state = before;
            }
            default -> throw new IllegalArgumentException(step.toString());
        }
    }

    private void send(JsonNode step) throws Exception {
        int partition = step.get("partition").asInt();
        long time = step.get("time").asLong();
        byte[] key = step.has("key") ? step.get("key").asText().getBytes(StandardCharsets.UTF_8) : null;
        if (Mark.isMark(key) || state.watermark != null && time < state.watermark) {
            throw new IllegalArgumentException("a mark's key, or a time below the watermark: " + step);
        }
        if (state.status != Mark.Status.ACTIVE || partition >= state.partitions) {
            mark(Mark.Status.ACTIVE);  // rules 1 and 5: readers hear of a source, and of a partition, before its first record
        }
        if (partition >= state.partitions) {
            throw new IllegalArgumentException("no such partition: " + step);
        }
        byte[] value = step.get("value").asText().getBytes(StandardCharsets.UTF_8);
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, partition, key, value);
        if (step.path("header").asBoolean()) {
            record.headers().add("floodmark-time", Long.toString(time).getBytes(StandardCharsets.US_ASCII));
        }
        unacknowledged.add(producer.send(record));
        state.records.merge(partition, 1L, Long::sum);
    }

    /** Marks every partition, behind the acknowledgement of all that was sent. */
    private void mark(Mark.Status status) throws Exception {
        if (state.status == Mark.Status.ENDED) {
            throw new IllegalStateException("the epoch has ended");
        }
        awaitAcknowledgements();
        state.status = status;
        state.partitions = producer.partitionsFor(topic).size();
        for (int partition = 0; partition < state.partitions; partition++) {
            long sequence = state.sequences.merge(partition, 0L, (last, none) -> last + 1);
            Mark mark = new Mark(
                    source, epoch, sequence, state.watermark, status, new Mark.Membership(state.version, state.size),
                    state.partitions, state.records.getOrDefault(partition, 0L), System.currentTimeMillis(), null, null, null, null);
            ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, partition, mark.key(), mark.encode());
            record.headers().add(Mark.HEADER, new byte[] {'1'});
            unacknowledged.add(producer.send(record));
        }
        awaitAcknowledgements();
    }

    private void awaitAcknowledgements() throws ExecutionException, InterruptedException {
        producer.flush();
        for (Future<?> sent : unacknowledged) {
            sent.get();
        }
        unacknowledged.clear();
    }

    @Override
    public void close() {
        producer.flush();
        producer.close();
    }
}
