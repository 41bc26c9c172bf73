package floodmark;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.nio.file.Path;
import java.util.HexFormat;
import org.junit.jupiter.api.Test;

/** The vectors of the wire format. */
final class MarkTest {

    private final JsonNode vectors = Stage.JSON.readTree(Path.of("..", "..", "vectors.json").toFile());

    MarkTest() throws IOException {}

    @Test
    void readsWhatIsAcceptedAndWritesTheSameBytes() throws Mark.Unreadable {
        for (JsonNode vector : vectors.get("accepted")) {
            Mark mark = Mark.decode(bytes(vector.get("key")), bytes(vector.get("value")));
            assertEquals(vector.get("record").toString(), Stage.JSON.valueToTree(mark).toString());
            assertArrayEquals(bytes(vector.get("key")), mark.key());
            assertArrayEquals(bytes(vector.get("value")), mark.encode());
        }
    }

    @Test
    void refusesTheOthers() {
        for (JsonNode vector : vectors.get("refused")) {
            byte[] key = bytes(vector.get("key"));
            assertThrows(Mark.Unreadable.class, () -> Mark.decode(key, bytes(vector.get("value"))), vector.toString());
        }
    }

    private static byte[] bytes(JsonNode hex) {
        return hex.isNull() ? null : HexFormat.of().parseHex(hex.asText());
    }
}
