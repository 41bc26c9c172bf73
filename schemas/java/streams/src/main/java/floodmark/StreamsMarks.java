package floodmark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.RecordMetadata;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** Holds the rows of a partition until its marks release them, and hands them on in the order of their event times. */
public final class StreamsMarks implements Processor<byte[], byte[], byte[], byte[]> {

    private static final Bytes STATE = Bytes.wrap(new byte[] {0});
    private ProcessorContext<byte[], byte[]> context;
    private KeyValueStore<Bytes, byte[]> waiting;
    private KeyValueStore<Bytes, byte[]> marks;
    private TopicWatermark reached;

    @Override
    public void init(ProcessorContext<byte[], byte[]> context) {
        this.context = context;
        waiting = context.getStateStore("waiting");
        marks = context.getStateStore("marks");
        byte[] before = marks.get(STATE);
        try {
            reached = before == null ? new TopicWatermark() : TopicWatermark.of(before);
        } catch (IOException | ClassNotFoundException unreadable) {
            throw new IllegalStateException(unreadable);
        }
    }

    @Override
    public void process(Record<byte[], byte[]> record) {
        RecordMetadata at = context.recordMetadata().orElseThrow();
        if (!Mark.isMark(record.key())) {
            hold(record, at.offset());
            return;
        }
        reached.apply(record.key(), record.value(), at.partition(), at.offset(), record.timestamp());
        Long watermark = reached.advance(at.partition());
        try {
            marks.put(STATE, reached.toBytes());
        } catch (IOException impossible) {
            throw new UncheckedIOException(impossible);
        }
        if (watermark != null) {
            release(watermark == Mark.END_OF_TIME ? watermark : watermark - 1);
        }
    }

    private void hold(Record<byte[], byte[]> record, long offset) {
        Long adjusted = Headers.timeIn(record.headers(), "floodmark-time");
        String text = new String(record.value(), StandardCharsets.UTF_8);
        long time = adjusted != null ? adjusted : Long.parseLong(text.replaceAll("[^0-9]", ""));
        if (time < reached.handedOn()) {
            System.out.println("{\"late\": " + time + "}");
        } else {
            ByteBuffer row = ByteBuffer.allocate(4 + record.key().length + record.value().length);
            waiting.put(place(time, offset), row.putInt(record.key().length).put(record.key()).put(record.value()).array());
        }
    }

    private void release(long last) {
        List<KeyValue<Bytes, byte[]>> complete = new ArrayList<>();
        try (KeyValueIterator<Bytes, byte[]> rows = waiting.range(null, place(last, Long.MAX_VALUE))) {
            rows.forEachRemaining(complete::add);
        }
        for (KeyValue<Bytes, byte[]> entry : complete) {
            ByteBuffer row = ByteBuffer.wrap(entry.value);
            byte[] key = new byte[row.getInt()];
            row.get(key);
            byte[] value = new byte[row.remaining()];
            row.get(value);
            context.forward(new Record<>(key, value, timeOf(entry.key)));
            waiting.delete(entry.key);
        }
    }

    /** A key that sorts by time, also before 1970, then by offset. */
    private static Bytes place(long time, long offset) {
        return Bytes.wrap(ByteBuffer.allocate(16).putLong(time ^ Long.MIN_VALUE).putLong(offset).array());
    }

    private static long timeOf(Bytes place) {
        return ByteBuffer.wrap(place.get()).getLong() ^ Long.MIN_VALUE;
    }

    /** Passes a topic on, complete and in order, until it is stopped: BOOTSTRAP_SERVERS FROM TO STATE_FOLDER. */
    public static void main(String[] arguments) throws InterruptedException {
        Properties settings = new Properties();
        settings.put("application.id", "marks-" + arguments[1]);
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("processing.guarantee", "exactly_once_v2");  // it reads what is committed, too
        settings.put("state.dir", arguments[3]);
        settings.put("replication.factor", 1);
        StreamsBuilder builder = new StreamsBuilder();
        for (String name : List.of("waiting", "marks")) {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore(name), Serdes.Bytes(), Serdes.ByteArray()));
        }
        builder.stream(arguments[1], Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
                .process(StreamsMarks::new, "waiting", "marks")
                .to(arguments[2], Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
        new CountDownLatch(1).await();
    }
}
