#!/bin/sh
# A server, three sites and a stranger as five hosts: network namespaces on one switch, with the firewalls of docs/operations.md.
#
#   unshare --map-root-user --net --mount sh examples/flower/hosts.sh FOLDER [PYTHON]
#
# runs examples/flower/job.toml over them and then tries what the firewalls and the server must refuse. Nothing of the machine's
# own network is touched. It takes iproute2, nsenter and nft.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
python=${2:-python3}
mkdir -p "$folder"
cd "$folder"

mkdir -p /run/netns
mount -t tmpfs none /run/netns
ip link set lo up
ip link add switch type bridge
ip link set switch up
number=0
for host in server basel bern chur stranger; do
  number=$((number + 1))
  ip netns add $host
  ip link add to-$host type veth peer name eth0 netns $host
  ip link set to-$host master switch up
  ip -n $host address add 10.77.0.$number/24 dev eth0
  ip -n $host link set lo up
  ip -n $host link set eth0 up
done
on() { host=$1; shift; nsenter --net=/run/netns/$host -- "$@"; }

fedconcord() { host=$1; shift; on $host "$python" -m fedconcord "$@"; }
fedconcord server flower keys server --host 10.77.0.1 --out server-keys
for site in basel bern chur; do
  fedconcord $site flower keys site $site --out $site-keys
  cp server-keys/ca.crt $site-keys/
  cp $site-keys/$site.pub server-keys/
done
fedconcord server flower new app --config "$here/job.toml" --sites basel,bern,chur --out "$PWD/results"

# The firewalls that `flower new` wrote, with the sites' addresses.
sed 's|192.0.2.0/24|10.77.0.2-10.77.0.4|' app/operate/nftables.conf >server.nft
on server nft -f server.nft
for site in basel bern chur; do on $site nft -f app/operate/nftables-site.conf; done

started=
trap 'kill $started 2>/dev/null; wait' EXIT
trap 'exit 143' INT TERM HUP # for which sh does not end as by EXIT
fedconcord server flower server --keys server-keys --port 8443 >server.log 2>&1 &
started="$started $!"
seconds=0
until grep -q "site chur may come" server.log; do
  seconds=$((seconds + 1)); [ $seconds -lt 120 ] || { cat server.log; exit 1; }
  sleep 1
done
for site in basel bern chur; do
  fedconcord $site flower site $site --server 10.77.0.1:8443 --keys $site-keys --data "$here/$site.csv" \
    --policy app/site.toml >$site.log 2>&1 &
  started="$started $!"
done

submit() { # from a host, to an address
  mkdir -p flwr-$1
  printf '[superlink]\ndefault = "team"\n[superlink.team]\naddress = "%s:8443"\nroot-certificates = "%s"\n' \
    "$2" "$PWD/server-keys/ca.crt" >flwr-$1/config.toml
  FLWR_HOME=$PWD/flwr-$1 FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 \
    on $1 "$python" -c "from flwr.cli.app import app; app()" run app team
}
submit server 127.0.0.1 || exit 1
seconds=0
until grep -q '"status": "complete"' results/run.json 2>/dev/null; do
  seconds=$((seconds + 1)); [ $seconds -lt 400 ] || { tail -n 20 ./*.log server-keys/server/logs/*.log; exit 1; }
  sleep 1
done
echo "a run over four hosts is complete"

reaches() { # from a host, to an address and a port where something listens
  on $1 "$python" -c "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)" $2 $3 2>/dev/null
}
listening() { # on every host, so that a refusal is the firewall's
  on $1 "$python" -m http.server --bind 0.0.0.0 9000 >/dev/null 2>&1 &
  started="$started $!"
}
for host in server basel bern chur stranger; do listening $host; done
sleep 3
for host in server basel bern chur stranger; do
  reaches $host 127.0.0.1 9000 || { echo "nothing listens on $host"; exit 1; }
done
reaches basel 10.77.0.1 8443 || { echo "a site does not reach the server"; exit 1; }
for way in "stranger 10.77.0.1 8443" "basel 10.77.0.1 9000" "server 10.77.0.2 9000" "bern 10.77.0.2 9000" "stranger 10.77.0.4 9000"; do
  if reaches $way; then echo "the firewall lets through: $way"; exit 1; fi
  echo "not let through: $way"
done
if submit basel 10.77.0.1 >refused.log 2>&1; then echo "a site could submit a run"; exit 1; fi
grep -q "[4]03" refused.log server-keys/server/logs/superlink.log || { cat refused.log; exit 1; }
echo "a site that submits a run is refused"
fedconcord basel flower health --keys basel-keys --server 10.77.0.1:8443 --site basel
fedconcord basel flower health --keys basel-keys --server 10.77.0.1:8443 --site basel --json
echo "all as documented"
