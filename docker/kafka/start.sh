#!/bin/sh
# Start one Kafka node (KRaft).  Settings come from variables: KAFKA_NODE_ID=1 becomes node.id=1.
set -eu
properties=/opt/kafka/server.properties
: "${KAFKA_LOG_DIRS:=${KAFKA_LOG_DIR:-/var/lib/kafka/data}}"
export KAFKA_LOG_DIRS
env | grep '^KAFKA_' | while IFS='=' read -r name value; do
    printf '%s=%s\n' "$(printf '%s' "${name#KAFKA_}" | tr 'A-Z_' 'a-z.')" "$value"
done > "$properties"
export CLASSPATH="/opt/kafka/libs/*"
java="java -Xmx${HEAP:-512m} -Dlog4j2.configurationFile=/opt/kafka/log4j2.xml"
[ -e "$KAFKA_LOG_DIRS/meta.properties" ] ||
    $java kafka.tools.StorageTool format -t "${CLUSTER_ID:-Zmxvb2RtYXJrLWthZmthAA}" -c "$properties"
exec $java kafka.Kafka "$properties"
