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
debootstrap --variant=minbase --include=openjdk-17-jre-headless bookworm "$work/root" "$mirror" > "$work/log" 2>&1 ||
    { tail -20 "$work/log" >&2; exit 1; }
rm -rf "$work/root/var/cache/apt" "$work/root/var/lib/apt/lists" "$work/root/usr/share/doc" "$work/root/usr/share/man"
mkdir -p "$work/root/opt/kafka/libs" "$work/root/var/lib/kafka"
"$python" -c 'from floodmark.producers.jars import fetch
from floodmark.producers.embedded_kafka import VERSION
print(*fetch("org.apache.kafka", "kafka_2.13", VERSION), sep="\n")' | xargs -I{} cp {} "$work/root/opt/kafka/libs/"
cp "$here"/kafka/start.sh "$here"/kafka/log4j2.xml "$work/root/opt/kafka/"
chmod +x "$work/root/opt/kafka/start.sh"
tar -C "$work/root" -c . | docker import --change 'ENTRYPOINT ["/opt/kafka/start.sh"]' - "$tag"
