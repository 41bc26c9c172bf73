package floodmark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.MockProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A source, as SPEC.md says under "Writers": {@code Writer BOOTSTRAP_SERVERS TOPIC SOURCE EPOCH SIZE [TRANSACTIONAL_ID]}.
 *
 * <p>{@code Writer} alone writes to no Kafka: it prints its records, as SPEC.md says under "Conformance".
 *
 * <p>It takes what to do from standard input, a line of JSON each: {@code send} with {@code partition}, {@code time} (event
 * time), {@code value}, where wanted {@code key} and {@code header: true} (the time is to stand in the header);
 * {@code watermark} with {@code time}; {@code idle}; {@code members} with {@code version} and {@code size}; {@code end};
 * {@code begin}, {@code commit} and {@code abort} of a transaction.
 */
public final class Writer implements AutoCloseable {

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

    /** A topic that keeps its records until they are printed. */
    private static final class Printed extends MockProducer<byte[], byte[]> {
        private int partitions;

        Printed(int partitions) {
            super(true, null, new ByteArraySerializer(), new ByteArraySerializer());
            this.partitions = partitions;
        }

        @Override
        public List<PartitionInfo> partitionsFor(String topic) {
            return Collections.nCopies(partitions, null);
        }

        ArrayNode take() {
            ArrayNode records = Stage.JSON.createArrayNode();
            for (ProducerRecord<byte[], byte[]> record : history()) {
                ObjectNode line = records.addObject().put("partition", record.partition());
                line.put("key", record.key() == null ? null : HexFormat.of().formatHex(record.key()));
                line.put("value", HexFormat.of().formatHex(record.value()));
                ObjectNode headers = line.putObject("headers");
                record.headers().forEach(each -> headers.put(each.key(), new String(each.value(), StandardCharsets.US_ASCII)));
            }
            clear();
            return records;
        }
    }

    private final Producer<byte[], byte[]> producer;
    private final List<Future<?>> unacknowledged = new ArrayList<>();
    private final String topic;
    private final String source;
    private final long epoch;
    private State state = new State();
    private State before;

    public Writer(Producer<byte[], byte[]> producer, String topic, String source, long epoch, int version, int size) {
        this.producer = producer;
        this.topic = topic;
        this.source = source;
        this.epoch = epoch;
        state.version = version;
        state.size = size;
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        if (arguments.length == 0) {
            printLines(in);
            return;
        }
        String id = arguments.length > 5 ? arguments[5] : null;
        try (Writer writer = new Writer(
                connected(arguments[0], id), arguments[1], arguments[2], Long.parseLong(arguments[3]), 1,
                Integer.parseInt(arguments[4]))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                writer.act(Stage.JSON.readTree(line));
            }
        }
    }

    /** An idempotent producer, or a transactional one if an id is given. */
    static Producer<byte[], byte[]> connected(String servers, String transactionalId) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", servers, "enable.idempotence", true));
        if (transactionalId != null) {
            settings.put("transactional.id", transactionalId);
        }
        Producer<byte[], byte[]> producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        if (transactionalId != null) {
            producer.initTransactions();
        }
        return producer;
    }

    private static void printLines(BufferedReader in) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Printed printed = null;
        Writer writer = null;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode step = Stage.JSON.readTree(line);
            ObjectNode answer = Stage.JSON.createObjectNode();
            try {
                switch (step.get("do").asText()) {
                    case "start" -> {
                        printed = new Printed(step.get("partitions").asInt());
                        writer = new Writer(
                                printed, step.get("topic").asText(), step.get("source").asText(), step.get("epoch").asLong(),
                                step.get("version").asInt(), step.get("size").asInt());
                    }
                    case "grow" -> {
                        printed.partitions = step.get("partitions").asInt();
                        writer.mark(writer.state.status);
                    }
                    default -> writer.act(step);
                }
                answer.set("records", printed.take());
            } catch (IllegalArgumentException refused) {
                answer.put("refused", refused.getMessage());
            }
            out.println(answer);
        }
    }

    private void act(JsonNode step) throws Exception {
        switch (step.get("do").asText()) {
            case "send" -> send(step);
            case "watermark" -> advance(step.get("time").asLong());
            case "idle" -> mark(Mark.Status.IDLE);
            case "end" -> end();
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
        byte[] key = step.hasNonNull("key") ? step.get("key").asText().getBytes(StandardCharsets.UTF_8) : null;
        byte[] value = step.get("value").asText().getBytes(StandardCharsets.UTF_8);
        send(step.get("partition").asInt(), step.get("time").asLong(), key, value, step.path("header").asBoolean());
    }

    /** Raises the watermark, or repeats it: no later record is before it. Call it once a second, or readers take it for dead. */
    public void advance(long watermark) throws Exception {
        state.watermark = state.watermark == null ? watermark : Math.max(state.watermark, watermark);
        mark(Mark.Status.ACTIVE);
    }

    /** Lets readers go on without this source until its next record. */
    public void idle() throws Exception {
        mark(Mark.Status.IDLE);
    }

    /** Ends the epoch: nothing follows. */
    public void end() throws Exception {
        mark(Mark.Status.ENDED);
    }

    /** Sends a record; with {@code header}, its time stands in a header. */
    public void send(int partition, long time, byte[] key, byte[] value, boolean header) throws Exception {
        if (Mark.isMark(key) || state.watermark != null && time < state.watermark) {
            throw new IllegalArgumentException("a mark's key, or a time below the watermark: " + time);
        }
        if (state.status != Mark.Status.ACTIVE || partition >= state.partitions) {
            mark(Mark.Status.ACTIVE);  // rules 1 and 5: readers hear of a source, and of a partition, before its first record
        }
        if (partition >= state.partitions) {
            throw new IllegalArgumentException("no such partition: " + partition);
        }
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, partition, key, value);
        if (header) {
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
