package floodmark;

import java.io.Serializable;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.IntStream;

/**
 * The watermark of one topic, as SPEC.md says under "Readers", for one who knows SPEC.md alone.
 *
 * <p>Everything is worked out anew when it is asked for: this is to be compared with, not to be fast.
 */
public final class Topic implements Serializable {

    /** What a partition, a topic or a stage has: a watermark, or one of three states without one. */
    public record Progress(Kind kind, long watermark) {
        public enum Kind { UNKNOWN, IDLE, ENDED, KNOWN }

        public static final Progress UNKNOWN = new Progress(Kind.UNKNOWN, 0);

        /** The rule of the table's two lower lines: over the partitions of a topic, or the topics of a stage. */
        public static Progress over(Iterable<Progress> parts) {
            boolean any = false;
            boolean ended = true;
            long least = Long.MAX_VALUE;
            for (Progress part : parts) {
                if (part.kind == Kind.UNKNOWN) {
                    return UNKNOWN;
                }
                any = true;
                ended &= part.kind == Kind.ENDED;
                if (part.kind == Kind.KNOWN) {
                    least = Math.min(least, part.watermark);
                }
            }
            if (!any) {
                return UNKNOWN;
            }
            return least < Long.MAX_VALUE ? new Progress(Kind.KNOWN, least) : without(ended);
        }

        public static Progress without(boolean ended) {
            return new Progress(ended ? Kind.ENDED : Kind.IDLE, 0);
        }
    }

    /** The last accepted mark of a source in a partition, its highest watermark in the epoch, and its lease's clock. */
    private record Last(Mark mark, Long watermark, long clock) implements Serializable {}

    /** A clock of one length of lease, and of each source there (C, t) of its hand. */
    private static final class Clock implements Serializable {
        private long now;
        private final Map<String, long[]> hands = new HashMap<>();

        void step(String source, long logTime, long lease, boolean anew) {
            long[] hand = hands.get(source);
            if (hand == null || anew) {
                hands.put(source, new long[] {now, logTime});
                return;
            }
            long step = logTime - hand[1];
            if (0 < step && step <= lease) {
                now = Math.max(now, hand[0] + step);
            }
            if (step > 0 || -step > lease) {
                hands.put(source, new long[] {now, logTime});
            }
        }
    }

    private static final class Partition implements Serializable {
        private final Map<String, Last> sources = new HashMap<>();
        private final Set<String> unreadable = new HashSet<>();
        private final Map<Long, Clock> clocks = new HashMap<>();
        private long lastUnreadable = -1;
    }

    private static final int FORGOTTEN = 1000;
    private static final long HIGHEST = Mark.END_OF_TIME - 1;

    private final Map<Integer, Partition> partitions = new TreeMap<>();
    private final Map<String, Integer> knownPartitions = new HashMap<>();
    private final Map<String, Integer> lastVersion = new HashMap<>();
    private final Map<String, Long> forgotten = new LinkedHashMap<>();
    private final Integer percent;
    private int version;
    private int size;
    private int count;

    /** With a percent, 1 to 100, that the reader asks for; null for the watermark itself. */
    public Topic(Integer percent) {
        this.percent = percent;
    }

    /** Takes a mark, in the order of its partition's log; tells whether it is accepted. */
    public boolean apply(Mark mark, int number, long logTime) {
        Partition partition = partitions.computeIfAbsent(number, missing -> new Partition());
        Last last = partition.sources.get(mark.source());
        if (isReplayOrZombie(mark, last)) {
            return false;
        }
        partition.unreadable.remove(mark.source());
        if (mark.membership().version() < version) {
            return false;
        }
        size = mark.membership().version() == version ? Math.max(size, mark.membership().size()) : mark.membership().size();
        version = mark.membership().version();
        count = Math.max(count, Math.max(mark.partitions(), number + 1));
        boolean anew = last == null || mark.epoch() > last.mark.epoch();
        partition.sources.put(mark.source(), new Last(mark, anew ? asked(mark) : higher(last.watermark, asked(mark)), 0));
        knownPartitions.merge(mark.source(), Math.max(mark.partitions(), number + 1), Math::max);
        lastVersion.put(mark.source(), mark.membership().version());
        moveClocks(partition, mark, logTime, anew);
        forget();
        return true;
    }

    private boolean isReplayOrZombie(Mark mark, Last last) {
        if (last == null) {
            return mark.epoch() < forgotten.getOrDefault(mark.source(), 0L);
        }
        Mark before = last.mark;
        return mark.epoch() < before.epoch()
                || mark.epoch() == before.epoch()
                        && (mark.sequence() <= before.sequence() || before.status() == Mark.Status.ENDED);
    }

    private Long asked(Mark mark) {
        if (percent == null || mark.percentiles() == null) {
            return mark.watermark();
        }
        return mark.percentiles().entrySet().stream()
                .filter(entry -> Integer.parseInt(entry.getKey()) >= percent)
                .min(Comparator.comparing(entry -> Integer.parseInt(entry.getKey())))
                .map(Map.Entry::getValue)
                .orElse(mark.watermark());
    }

    private static Long higher(Long before, Long now) {
        return before == null ? now : now == null ? before : (Long) Math.max(before, now);
    }

    private static void moveClocks(Partition partition, Mark mark, long logTime, boolean anew) {
        Set<Long> leases = new HashSet<>();
        partition.sources.values().forEach(last -> leases.add(last.mark.lease()));
        leases.remove(null);
        partition.clocks.keySet().retainAll(leases);
        for (long lease : leases) {
            partition.clocks.computeIfAbsent(lease, missing -> new Clock()).step(mark.source(), logTime, lease, anew);
        }
        if (mark.lease() != null) {
            long now = partition.clocks.get(mark.lease()).now;
            partition.sources.computeIfPresent(mark.source(), (source, last) -> new Last(last.mark, last.watermark, now));
        }
    }

    /** Takes a mark that cannot be read; of nobody where {@code source} is null. */
    public void applyUnreadable(String source, int number, long offset) {
        Partition partition = partitions.computeIfAbsent(number, missing -> new Partition());
        if (offset > partition.lastUnreadable) {
            partition.lastUnreadable = offset;
            if (source != null && lastVersion.containsKey(source)) {
                partition.unreadable.add(source);
                count = Math.max(count, number + 1);
            }
        }
    }

    private void forget() {
        if (numbers().anyMatch(number -> reported(number).size() < size)) {
            return;
        }
        for (String source : List.copyOf(lastVersion.keySet())) {
            boolean gone = partitions.values().stream().noneMatch(p -> p.unreadable.contains(source)
                    || p.sources.containsKey(source) && p.sources.get(source).mark.membership().version() == version);
            if (gone) {
                long epoch = 0;
                for (Partition partition : partitions.values()) {
                    Last last = partition.sources.remove(source);
                    epoch = last == null ? epoch : Math.max(epoch, last.mark.epoch());
                    partition.clocks.keySet().removeIf(lease -> partition.sources.values().stream().noneMatch(
                            other -> lease.equals(other.mark.lease())));
                    partition.clocks.values().forEach(clock -> clock.hands.remove(source));
                }
                knownPartitions.remove(source);
                lastVersion.remove(source);
                Long before = forgotten.remove(source);
                forgotten.put(source, before == null ? epoch : Math.max(before, epoch));
                if (forgotten.size() > FORGOTTEN) {
                    forgotten.remove(forgotten.keySet().iterator().next());
                }
            }
        }
    }

    public Progress progress() {
        return Progress.over(numbers().mapToObj(this::progress).toList());
    }

    /** The partitions that matter: those with records, and of the others, maybe 2^31, the lowest and the highest. */
    private IntStream numbers() {
        IntStream marked = partitions.keySet().stream().mapToInt(number -> number).filter(number -> number < count);
        IntStream lowest = IntStream.range(0, count).filter(number -> !partitions.containsKey(number)).limit(1);
        IntStream highest =
                IntStream.range(0, count).map(number -> count - 1 - number).filter(number -> !partitions.containsKey(number)).limit(1);
        return IntStream.concat(marked, IntStream.concat(lowest, highest));
    }

    public Progress progress(int number) {
        Partition partition = partitions.getOrDefault(number, new Partition());
        Set<String> members = members(number);
        if (!partition.unreadable.isEmpty() || size == 0 || members.size() < size) {
            return Progress.UNKNOWN;
        }
        long least = Long.MAX_VALUE;
        boolean ended = true;
        for (String source : members) {
            Last last = partition.sources.get(source);
            if (isActive(source)) {
                if (last.watermark == null) {
                    return Progress.UNKNOWN;
                }
                least = Math.min(least, Math.min(last.watermark, HIGHEST));
            }
            ended &= last == null ? hasEndedEverywhere(source) : last.mark.status() == Mark.Status.ENDED;
        }
        return least < Long.MAX_VALUE ? new Progress(Progress.Kind.KNOWN, least) : Progress.without(ended);
    }

    /** The sources whose last accepted record in a partition is of the topic's version. */
    private Set<String> reported(int number) {
        Set<String> found = new HashSet<>();
        if (partitions.containsKey(number)) {
            partitions.get(number).sources.forEach((source, last) -> {
                if (last.mark.membership().version() == version) {
                    found.add(source);
                }
            });
        }
        return found;
    }

    private Set<String> members(int number) {
        Set<String> found = reported(number);
        for (String source : lastVersion.keySet()) {
            boolean unheard = !partitions.containsKey(number) || !partitions.get(number).sources.containsKey(source);
            if (unheard && !isActive(source) && number >= knownPartitions.get(source) && lastVersion.get(source) == version) {
                found.add(source);
            }
        }
        return found;
    }

    private boolean isActive(String source) {
        return partitions.values().stream().anyMatch(partition -> {
            Last last = partition.sources.get(source);
            return last != null && last.mark.status() == Mark.Status.ACTIVE && !hasRunOut(partition, last);
        });
    }

    private static boolean hasRunOut(Partition partition, Last last) {
        Long lease = last.mark.lease();
        return lease != null && partition.clocks.get(lease).now - last.clock > 2 * lease;
    }

    private boolean hasEndedEverywhere(String source) {
        return partitions.values().stream().map(partition -> partition.sources.get(source))
                .allMatch(last -> last == null || last.mark.status() == Mark.Status.ENDED);
    }
}
