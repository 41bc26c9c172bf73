package floodmark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import org.junit.jupiter.api.Test;

/** The watermark of a topic, as engines follow it. */
final class TopicWatermarkTest {

    private final TopicWatermark topic = new TopicWatermark();

    private void apply(long epoch, long sequence, long watermark, Mark.Status status) {
        Mark mark = new Mark(
                "web", epoch, sequence, watermark, status, new Mark.Membership(1, 1), 1, 0L, 0, null, null, null, null);
        topic.apply(mark.key(), mark.encode(), 0, sequence, 0);
    }

    @Test
    void risesAndEnds() {
        apply(1, 0, 12, Mark.Status.ACTIVE);
        assertEquals(12, topic.advance());
        assertNull(topic.advance());
        apply(1, 1, 12, Mark.Status.ENDED);
        assertEquals(Mark.END_OF_TIME, topic.advance());
        assertNull(topic.advance());
    }

    @Test
    void refusesWhatFollowsTheEnd() {
        apply(1, 0, 12, Mark.Status.ENDED);
        assertEquals(Mark.END_OF_TIME, topic.advance());
        apply(2, 0, 13, Mark.Status.ACTIVE);
        assertThrows(IllegalStateException.class, topic::advance);
    }
}
