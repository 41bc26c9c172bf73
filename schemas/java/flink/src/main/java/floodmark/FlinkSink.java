package floodmark;

import java.nio.charset.StandardCharsets;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;

/**
 * Writes rows, and at each watermark of Flink marks: the job is a source of the topic. One instance, for a job that is not
 * restarted: a restart would write rows again.
 */
public final class FlinkSink extends AbstractStreamOperator<String> implements OneInputStreamOperator<String, String> {

    private final String servers;
    private final String topic;
    private transient Writer writer;

    public FlinkSink(String servers, String topic) {
        this.servers = servers;
        this.topic = topic;
    }

    @Override
    public void open() throws Exception {
        super.open();
        writer = new Writer(Writer.connected(servers, null), topic, "flink", System.currentTimeMillis(), 1, 1);
    }

    @Override
    public void processElement(StreamRecord<String> row) throws Exception {
        writer.send(0, row.getTimestamp(), null, row.getValue().getBytes(StandardCharsets.UTF_8), false);
    }

    @Override
    public void processWatermark(Watermark watermark) throws Exception {
        // Flink's watermark T says that no row at T or before is to come, a mark's that none before T is.
        if (watermark.equals(Watermark.MAX_WATERMARK)) {
            writer.end();
        } else {
            writer.advance(watermark.getTimestamp() + 1);
        }
    }

    @Override
    public void close() throws Exception {
        if (writer != null) {
            writer.close();
        }
        super.close();
    }
}
