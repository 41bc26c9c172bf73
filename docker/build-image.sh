#!/usr/bin/env bash
# Build the image floodmark/kafka with no image registry: a Debian root, its Java, and Apache Kafka's own jars.
#
#   docker/build-image.sh PYTHON [TAG]
#
# PYTHON has Floodmark installed; it fetches the jars, and keeps them.  Needs root and debootstrap.
set -euo pipefail
python=$1
tag=${2:-floodmark/kafka:4.1.0}
here=$(cd "$(dirname "$0")" && pwd)
if docker image inspect "$tag" > /dev/null 2>&1; then
    echo "$tag is there already"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The Debian mirror is whatever this machine's own apt uses.
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep debian | grep -v security | head -1)
debootstrap --variant=minbase --include=openjdk-17-jre-headless bookworm "$work/image" "$mirror" > "$work/log" 2>&1 ||
    { tail -20 "$work/log" >&2; exit 1; }
rm -rf "$work/image/var/cache/apt" "$work/image/var/lib/apt/lists" "$work/image/usr/share/doc" "$work/image/usr/share/man"
mkdir -p "$work/image/opt/kafka/libs" "$work/image/var/lib/kafka"
"$python" -c 'from floodmark.producers.embedded.jars import fetch
from floodmark.producers.embedded.broker import KAFKA_VERSION
print(*fetch("org.apache.kafka", "kafka_2.13", KAFKA_VERSION), sep="\n")' | xargs -I{} cp {} "$work/image/opt/kafka/libs/"
cp "$here"/kafka/start.sh "$here"/kafka/log4j2.xml "$work/image/opt/kafka/"
chmod +x "$work/image/opt/kafka/start.sh"
tar -C "$work/image" -c . | docker import --change 'ENTRYPOINT ["/opt/kafka/start.sh"]' - "$tag"
