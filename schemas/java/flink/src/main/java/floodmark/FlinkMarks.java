package floodmark;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Iterator;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.runtime.state.StateInitializationContext;
import org.apache.flink.runtime.state.StateSnapshotContext;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.util.CloseableIterator;
import org.apache.flink.util.Collector;
import org.apache.flink.util.OutputTag;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/** Marks become Flink's watermarks. One instance reads all partitions, for a topic's watermark needs all of them. */
public final class FlinkMarks extends AbstractStreamOperator<FlinkMarks.Row>
        implements OneInputStreamOperator<FlinkMarks.Row, FlinkMarks.Row> {

    private transient ListState<byte[]> kept;
    private transient TopicWatermark reached;

    @Override
    public void initializeState(StateInitializationContext context) throws Exception {
        super.initializeState(context);
        kept = context.getOperatorStateStore().getListState(new ListStateDescriptor<>(
                "marks", PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO));
        Iterator<byte[]> before = kept.get().iterator();
        reached = before.hasNext() ? TopicWatermark.of(before.next()) : new TopicWatermark();
    }

    @Override
    public void snapshotState(StateSnapshotContext context) throws Exception {
        super.snapshotState(context);
        kept.update(List.of(reached.toBytes()));
    }

    @Override
    public void processElement(StreamRecord<Row> element) {
        Row row = element.getValue();
        if (!Mark.isMark(row.key)) {
            output.collect(element.replace(row, row.time));
            return;
        }
        reached.apply(row.key, row.value, row.partition, row.offset, row.logTime);
        Long watermark = reached.advance();
        if (watermark != null) {
            // Flink's watermark T says that no row at T or before is to come, a mark's that none before T is.
            output.emitWatermark(watermark == Mark.END_OF_TIME ? Watermark.MAX_WATERMARK : new Watermark(watermark - 1));
        }
    }

    @Override
    public void processWatermark(Watermark ofTheSource) {
        // What the source says of itself, at the end of a bounded input too, is no promise.
    }

    /** A record of Kafka, with what of it counts here. */
    public static final class Row {
        public int partition;
        public long offset;
        public long logTime;
        public long time;
        public byte[] key;
        public byte[] value;
    }

    /** Reads a record, and of data its event time, {@code {"at": 12}}; the header goes first. */
    static final class Rows implements KafkaRecordDeserializationSchema<Row> {
        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Row> out) {
            Row row = new Row();
            row.partition = record.partition();
            row.offset = record.offset();
            row.logTime = record.timestamp();
            row.key = record.key();
            row.value = record.value();
            if (!Mark.isMark(row.key)) {
                Long adjusted = Headers.timeIn(record.headers(), "floodmark-time");
                String text = new String(row.value, StandardCharsets.UTF_8);
                row.time = adjusted != null ? adjusted : Long.parseLong(text.replaceAll("[^0-9]", ""));
            }
            out.collect(row);
        }

        @Override
        public TypeInformation<Row> getProducedType() {
            return TypeInformation.of(Row.class);
        }
    }

    /** Counts the rows of each key in windows of 10 s: BOOTSTRAP_SERVERS TOPIC [OUTPUT_TOPIC]. */
    public static void main(String[] arguments) throws Exception {
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment();
        environment.setParallelism(2);
        KafkaSource<Row> source = KafkaSource.<Row>builder()
                .setBootstrapServers(arguments[0])
                .setTopics(arguments[1])
                .setProperty("isolation.level", "read_committed")
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setBounded(OffsetsInitializer.latest())
                .setDeserializer(new Rows())
                .build();
        OutputTag<Row> late = new OutputTag<>("late", TypeInformation.of(Row.class));
        SingleOutputStreamOperator<String> windows = environment
                .fromSource(source, WatermarkStrategy.noWatermarks(), "topic")
                .setParallelism(1)
                .transform("marks", TypeInformation.of(Row.class), new FlinkMarks())
                .setParallelism(1)
                .keyBy(row -> new String(row.key, StandardCharsets.UTF_8), Types.STRING)
                .window(TumblingEventTimeWindows.of(Duration.ofSeconds(10)))
                .sideOutputLateData(late)
                .process(new Count(), Types.STRING);
        if (arguments.length > 2) {
            windows.transform("sink", Types.STRING, new FlinkSink(arguments[0], arguments[2])).setParallelism(1);
            environment.execute();
            return;
        }
        try (CloseableIterator<String> found = windows
                .union(windows.getSideOutput(late).map(row -> "{\"late\": " + row.time + "}").returns(Types.STRING))
                .executeAndCollect()) {
            found.forEachRemaining(System.out::println);
        }
    }

    static final class Count extends ProcessWindowFunction<Row, String, String, TimeWindow> {
        @Override
        public void process(String key, Context context, Iterable<Row> rows, Collector<String> out) {
            int count = 0;
            for (Row row : rows) {
                count++;
            }
            out.collect("{\"key\": \"%s\", \"end\": %d, \"n\": %d}".formatted(key, context.window().getEnd(), count));
        }
    }
}
