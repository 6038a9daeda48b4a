#!/bin/sh
# Makes what servers and nodes of a fleet show each other: secrets.sh FOLDER, with the names in
# SERVERS and NODES. Each gets a folder of its own below FOLDER, so that it can be given that alone:
#
#     authority/   ca.pem, ca.key                       signs the certificates of nodes
#     NODE/        ca.pem, cert.pem, key.pem            shown to servers and to other nodes
#                  users.conf                           passwords and rights of all servers
#     SERVER/      ca.pem, nats.password                its own password alone
#
# What is there stays, so a server or a node can be added by its name; nodes then read users.conf
# again by `nats-server --signal reload`. Files are readable by GROUP, too. Needs openssl alone.
set -eu
umask 077

folder=$1
group=${GROUP:-10001}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# mode, file, destination: puts a file in place as a whole.
put() {
    rm -f "$3.new"
    cp "$2" "$3.new"
    chgrp "$group" "$3.new"
    chmod "$1" "$3.new"
    mv -f "$3.new" "$3"
}

new_key() {
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"
}

authority=$folder/authority
mkdir -p "$authority"
if [ ! -e "$authority/ca.pem" ]; then
    new_key "$authority/ca.key"
    openssl req -x509 -new -key "$authority/ca.key" -days 3650 -subj "/CN=ncserverd fleet" \
        -addext "keyUsage=critical,keyCertSign" -out "$work/ca.pem"
    put 0444 "$work/ca.pem" "$authority/ca.pem"
fi

for node in $NODES; do
    mkdir -p "$folder/$node"
    chmod 0755 "$folder/$node"
    [ -e "$folder/$node/cert.pem" ] && continue
    new_key "$work/key.pem"
    # Nodes are servers and clients to each other.
    printf '%s\n' "basicConstraints=critical,CA:FALSE" "keyUsage=critical,digitalSignature" \
        "extendedKeyUsage=serverAuth,clientAuth" "subjectAltName=DNS:$node,DNS:localhost,IP:127.0.0.1" \
        >"$work/extensions"
    openssl req -new -key "$work/key.pem" -subj "/CN=$node" -out "$work/request"
    openssl x509 -req -in "$work/request" -CA "$authority/ca.pem" -CAkey "$authority/ca.key" \
        -set_serial "0x$(openssl rand -hex 16)" -days 3650 -extfile "$work/extensions" -out "$work/cert.pem"
    put 0444 "$authority/ca.pem" "$folder/$node/ca.pem"
    put 0440 "$work/key.pem" "$folder/$node/key.pem"
    put 0444 "$work/cert.pem" "$folder/$node/cert.pem"
done

# A server may speak for itself alone, and hear all.
{
    echo 'users = ['
    for server in $SERVERS; do
        mkdir -p "$folder/$server"
        chmod 0755 "$folder/$server"
        if [ ! -e "$folder/$server/nats.password" ]; then
            openssl rand -hex 24 >"$work/password"
            put 0444 "$authority/ca.pem" "$folder/$server/ca.pem"
            put 0440 "$work/password" "$folder/$server/nats.password"
        fi
        publish="[ \"ncserverd.beat.$server\", \"ncserverd.tell.$server.*\" ]"
        subscribe="[ \"ncserverd.beat.*\", \"ncserverd.tell.*.$server\" ]"
        printf '  { user: "%s", password: "%s", permissions: { publish: %s, subscribe: %s } }\n' \
            "$server" "$(cat "$folder/$server/nats.password")" "$publish" "$subscribe"
    done
    echo ']'
} >"$work/users.conf"
for node in $NODES; do
    put 0440 "$work/users.conf" "$folder/$node/users.conf"
done
