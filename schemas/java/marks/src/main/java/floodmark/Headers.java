package floodmark;

import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.header.Header;

/** The headers of data records. */
public final class Headers {

    /** The time in the last readable of the headers with this name, or null. */
    public static Long timeIn(Iterable<Header> headers, String name) {
        Long found = null;
        for (Header header : headers) {
            if (header.key().equals(name) && header.value() != null) {
                String text = new String(header.value(), StandardCharsets.ISO_8859_1);
                if (text.matches("-?[0-9]{1,15}") && Mark.isTime(Long.parseLong(text))) {
                    found = Long.valueOf(text);
                }
            }
        }
        return found;
    }
}
