#!/usr/bin/env bash
# The network of an ACU: a namespace of its own, from which its tools reach out by NAT, and into which nobody comes.
#
#   scripts/netns.sh up|down|status N [--config FILE] [--dry-run]
#   scripts/netns.sh exec N COMMAND...     run a command in it (as root)
#
# ACU N (0 to 255) has the namespace acuN (network.namespace names another), a pair of devices, acuN outside and eth0
# inside, and the addresses 10.231.N.1 and 10.231.N.2; ACU_SUBNET=172.30 takes 172.30.N.1 and .2. What leaves the box has the box's
# address. Answers come back in; nothing else does, from no other ACU either. Names are resolved as the box does, by
# /etc/netns/acuN/resolv.conf; one that is there already is left as it is.
#
# NAT is a table of nft (ip acuN), or rules of iptables with the comment acuN. Where the box forwards nothing by itself (Docker, ufw),
# two further rules of iptables let this ACU out. Everything is taken back by `down`: ip_forward with the last ACU.
set -euo pipefail
# shellcheck source=scripts/machine.sh
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"

steps=(namespace link limits forwarding nat passing names)
listen_backlog=4096
syn_backlog=8192
resolved=/run/systemd/resolve/resolv.conf # the real servers, where the box's own file names a stub

# The address plan

plan() {
  if ! namespace=$(kept namespace); then
    namespace=$(field network.namespace)
    if [[ $namespace == null ]]; then namespace=$name; fi
  fi
  local octet='(0|[1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-5])'
  subnet=${ACU_SUBNET:-$(subnet_there)}
  [[ $subnet =~ ^$octet\.$octet$ ]] || wrong "ACU_SUBNET is two numbers, such as 172.30, not '$subnet'"
  network=$subnet.$number.0/30 outside=$subnet.$number.1 inside=$subnet.$number.2
}

# The one that the link has, else the usual one.
subnet_there() {
  local address
  address=$(ip -4 -o address show dev "$name" 2>/dev/null | awk '{print $4}') || true
  if [[ $address == *.*.*.* ]]; then cut -d . -f 1-2 <<<"$address"; else printf '10.231\n'; fi
}

# What must hold before anything is changed.
check_plan() {
  local other
  other=$(ip -4 -o address show to "$network" | awk -v own="$name" '$2 != own {print $4 " on " $2}') ||
    die "the addresses of this box cannot be read: ip -4 address show"
  [[ ! $other ]] || taken "an address already (${other%%$'\n'*})"
  other=$({ ip -4 route show table all to match "$inside" && ip -4 route show table all to root "$network"; } |
    awk -v own="$name" '$1 != "default" && $1 != "throw" && $2 != "default" && !match($0, " dev " own "( |$)")') ||
    die "the routes of this box cannot be read: ip -4 route show table all"
  [[ ! $other ]] || taken "a route already (${other%%$'\n'*})"
  have nft || have iptables || die "NAT needs nft or iptables. $(how_to_get nftables nftables)"
}

taken() { die "$network has $1. Set ACU_SUBNET to two numbers that are free, such as ACU_SUBNET=172.30"; }

# The namespace. /run/netns is made by `ip` with the first namespace of the box, and taken away with ours if it was the last.

namespace_there() { kept namespace >/dev/null && in_list && [[ $(inside ip -o link show lo 2>/dev/null) == *,UP* ]]; }

in_list() { [[ -e /run/netns/$namespace ]] && ip netns list | awk '{print $1}' | grep -qxF "$namespace"; }

inside() { ip netns exec "$namespace" "$@"; }

namespace_up() {
  if ! kept namespace >/dev/null && in_list; then
    die "there is a namespace $namespace that is not this ACU's. Remove it (ip netns del $namespace), or set network.namespace"
  fi
  keep namespace "$namespace"
  share run-netns "$(there_or_not /run/netns)"
  if [[ -e /run/netns/$namespace ]] && ! in_list; then run rm -f "/run/netns/$namespace"; fi # killed while it was made
  in_list || run ip netns add "$namespace"
  run ip -n "$namespace" link set lo up
}

namespace_down() {
  if kept namespace >/dev/null && [[ -e /run/netns/$namespace ]]; then run ip netns del "$namespace" || return 1; fi
  forget namespace
  if [[ $(shared_last run-netns) == missing ]]; then remove_run_netns; fi
  leave run-netns
}

remove_run_netns() {
  [[ -d /run/netns && ! $(find /run/netns -mindepth 1 ! -name "$namespace" -print -quit) ]] || return 0
  if mountpoint -q /run/netns; then run umount /run/netns; fi
  run rmdir /run/netns
}

there_or_not() { if [[ -e $1 ]]; then printf 'there\n'; else printf 'missing\n'; fi; }

# The pair of devices, with the packet size of the road out.

link_there() {
  kept link >/dev/null && [[ $(ip -4 -o address show dev "$name" up 2>/dev/null) == *" $outside/30 "* &&
    $(inside ip -4 -o address show dev eth0 up 2>/dev/null) == *" $inside/30 "* &&
    $(inside ip -4 route show default 2>/dev/null) == *"via $outside "* ]]
}

link_up() {
  local size
  size=$(packet_size)
  if device_there; then
    kept link >/dev/null || die "there is a network device $name that is not this ACU's. Remove it: ip link del $name"
    run ip link del "$name"
  fi
  keep link "$name"
  run ip link add "$name" mtu "$size" type veth peer name eth0 mtu "$size" netns "$namespace"
  run ip address add "$outside/30" dev "$name"
  run ip link set "$name" up
  run ip -n "$namespace" address add "$inside/30" dev eth0
  run ip -n "$namespace" link set eth0 up
  run ip -n "$namespace" route add default via "$outside"
}

link_down() {
  if kept link >/dev/null && device_there; then run ip link del "$name" || return 1; fi
  forget link
}

device_there() { ip link show dev "$name" >/dev/null 2>&1; }

packet_size() {
  local device size
  device=$(ip -4 route show default | awk '{for (i = 1; i < NF; i++) if ($i == "dev") {print $(i + 1); exit}}')
  size=$({ [[ ! $device ]] || ip -o link show dev "$device"; } | awk '{for (i = 1; i < NF; i++) if ($i == "mtu") print $(i + 1)}')
  printf '%s\n' "${size:-1500}"
}

# The kernel's queues of connections that come in, which go with the namespace.

limits_there() {
  [[ $(inside sysctl -n net.core.somaxconn net.ipv4.tcp_max_syn_backlog 2>/dev/null) == "$listen_backlog"$'\n'"$syn_backlog" ]]
}

limits_up() {
  run ip netns exec "$namespace" sysctl -q -w "net.core.somaxconn=$listen_backlog" "net.ipv4.tcp_max_syn_backlog=$syn_backlog"
}

limits_down() { :; }

# Forwarding, which all ACUs of the box share.

forwarding_there() { shares ip-forward && [[ $(forwards) == 1 ]]; }

forwards() { printf '%s\n' "$(</proc/sys/net/ipv4/ip_forward)"; }

forwarding_up() {
  share ip-forward "$(forwards)"
  if [[ $(forwards) != 1 ]]; then run sysctl -q -w net.ipv4.ip_forward=1; fi
}

forwarding_down() {
  local before
  shares ip-forward || return 0
  if before=$(shared_last ip-forward) && [[ $(forwards) != "$before" ]]; then
    run sysctl -q -w "net.ipv4.ip_forward=$before" || return 1
  fi
  leave ip-forward
}

# NAT, and the door that only opens outwards.

nat_there() {
  kept nat >/dev/null || return 1
  if have nft; then
    [[ $(nft list table ip "$name" 2>/dev/null) == *"ip saddr $network"*masquerade*drop* ]]
  else
    (($(ipt_rules nat POSTROUTING | wc -l) == 1 && $(ipt_rules filter FORWARD | wc -l) == 3))
  fi
}

nat_up() {
  kept nat >/dev/null || refuse_others
  keep nat "$name"
  remove_nat
  if have nft; then
    run nft "$(nft_table)"
    warn_of_closed_tables
    return
  fi
  run iptables -w -t nat -I POSTROUTING -s "$network" ! -o "$name" -m comment --comment "$name" -j MASQUERADE
  run iptables -w -I FORWARD -o "$name" -m comment --comment "$name" -j DROP
  let_pass
}

nat_down() {
  kept nat >/dev/null || return 0
  remove_nat || return 1
  forget nat
}

table_there() { have nft && nft list table ip "$name" >/dev/null 2>&1; }

refuse_others() {
  local rules=''
  ! table_there || die "there is a table ip $name of nft that is not this ACU's. Remove it: nft delete table ip $name"
  if have iptables; then rules=$(ipt_rules nat POSTROUTING && ipt_rules filter FORWARD); fi
  [[ ! $rules ]] || die "there are rules of iptables with the comment $name that are not this ACU's. Remove them (with -D for -A): ${rules//$'\n'/; }"
}

remove_nat() {
  local code=0
  if table_there; then run nft delete table ip "$name" || code=1; fi
  if have iptables; then
    ipt_remove nat POSTROUTING || code=1
    ipt_remove filter FORWARD || code=1
  fi
  return "$code"
}

# In one transaction: all of it, or nothing.
nft_table() {
  printf 'table ip %s { ' "$name"
  printf 'chain out { type nat hook postrouting priority srcnat; ip saddr %s oifname != "%s" masquerade; }; ' "$network" "$name"
  printf 'chain in { type filter hook forward priority filter; '
  printf 'oifname "%s" ct state established,related accept; oifname "%s" drop; }; }\n' "$name" "$name"
}

# Firewalls of the box that are written in nft are left to whoever wrote them.
warn_of_closed_tables() {
  local table
  while read -r table; do
    if [[ $table == "ip filter" ]] && have iptables; then continue; fi
    say "warning: the table $table of nft forwards only what it is told to: accept there what comes from $name" \
      "(iifname \"$name\" accept, and oifname \"$name\" ct state established,related accept)"
  done < <(nft list chains 2>/dev/null | awk '/^table/ {table = $2 " " $3} /hook forward .*policy drop/ {print table}')
}

# The rules of ours in a chain of iptables, as `-A CHAIN ...`.
ipt_rules() { iptables -w -t "$1" -S "$2" 2>/dev/null | grep -E -- "--comment \"?$name\"? " || true; }

ipt_remove() {
  local rule words code=0
  while read -r rule; do
    read -ra words <<<"${rule//\"/}"
    run iptables -w -t "$1" -D "${words[@]:1}" || code=1
  done < <(ipt_rules "$1" "$2")
  return "$code"
}

# Out is let whatever goes to no ACU, in what answers.
let_pass() {
  run iptables -w -I FORWARD -i "$name" ! -o acu+ -m comment --comment "$name" -j ACCEPT
  run iptables -w -I FORWARD -o "$name" -m conntrack --ctstate RELATED,ESTABLISHED -m comment --comment "$name" -j ACCEPT
}

# Where the box forwards only what it is told to.

passing_there() {
  ! have nft || ! have iptables || [[ $(iptables -w -S FORWARD 2>/dev/null) != *"-P FORWARD DROP"* ]] ||
    (($(ipt_rules filter FORWARD | wc -l) == 2))
}

passing_up() {
  ipt_remove filter FORWARD
  let_pass
}

passing_down() { if kept nat >/dev/null && have nft && have iptables; then ipt_remove filter FORWARD; fi; }

# Names. A file that is there already is left to whoever wrote it; ours follows the box's with each `up`, also for who is inside.

names_there() {
  local file=/etc/netns/$namespace/resolv.conf source
  [[ -e $file || -L $file ]] && { ! kept names >/dev/null || ! source=$(resolv_source) || cmp -s "$source" "$file"; }
}

names_up() {
  local source folder=/etc/netns/$namespace
  if ! source=$(resolv_source); then
    say "warning: tools inside cannot resolve names: /etc/resolv.conf names only a server on this box itself. Write the server that" \
      "they shall ask into $folder/resolv.conf: nameserver ADDRESS"
    return
  fi
  keep names "$(there_or_not "$folder")"
  share etc-netns "$(there_or_not /etc/netns)"
  run mkdir -p "$folder"
  if [[ -e $folder/resolv.conf ]]; then
    run cp "$source" "$folder/resolv.conf"
  else
    run install -m 644 "$source" "$folder/resolv.conf"
  fi
}

names_down() {
  local before folder=/etc/netns/$namespace
  before=$(kept names) || { forget names && return; }
  if [[ -e $folder/resolv.conf ]]; then run rm -f "$folder/resolv.conf" || return 1; fi
  if [[ $before == missing && -d $folder ]]; then run rmdir --ignore-fail-on-non-empty "$folder"; fi
  forget names
  if [[ $(shared_last etc-netns) == missing && -d /etc/netns ]]; then run rmdir --ignore-fail-on-non-empty /etc/netns; fi
  leave etc-netns
}

# The first file that names a server which is not on the box's own loopback.
resolv_source() {
  local file
  for file in /etc/resolv.conf "$resolved"; do
    if grep -E '^[[:space:]]*nameserver[[:space:]]' "$file" 2>/dev/null | grep -qvE 'nameserver[[:space:]]+(127\.|::1)'; then
      printf '%s\n' "$file" && return
    fi
  done
  return 1
}

# Run a command inside. Not by `ip netns exec`, which hides the box's cgroups behind a fresh /sys: a daemon could not see its
# own limits. Mounts that come and go outside do so inside as well.
enter() {
  local resolv=/etc/netns/$namespace/resolv.conf
  # shellcheck disable=SC2016  # for that shell
  exec nsenter "--net=/run/netns/$namespace" unshare --mount --propagation slave \
    sh -c 'if [ -s "$0" ]; then mount -n --bind "$0" /etc/resolv.conf; fi && exec "$@"' "$resolv" "$@"
}

link_says() { printf '%s <-> %s\n' "$outside" "$inside"; }
namespace_says() { printf '%s\n' "$namespace"; }

if [[ ${1-} == exec ]]; then
  (($# > 2)) || wrong "say what to run: netns.sh exec N COMMAND..."
  take_arguments status "$2"
  plan
  in_list || die "ACU $number has no network: scripts/netns.sh up $number makes it"
  enter "${@:3}"
fi
take_arguments "$@"
plan
case $verb in
  up)
    begin up
    check_plan
    go_up "${steps[@]}"
    ;;
  down)
    begin down
    go_down "${steps[@]}"
    ;;
  status) tell "${steps[@]}" ;;
esac
