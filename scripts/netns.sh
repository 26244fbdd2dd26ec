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
# The box itself, by whichever of its addresses, is reached from inside only for names (port 53) and by ICMP: what listens there was
# not meant for tools. ACU_HOST_PORTS=5432,9000 lets in to TCP ports of it (all: to everything; none: as it is without). What clouds
# tell a machine of itself, with its credentials (169.254.169.254), is refused; ACU_METADATA=open lets it be asked. Both stay as they
# were asked for until another `up` says otherwise. There is no IPv6 on the link.
#
# NAT is a table of nft (ip acuN), or rules of iptables with the comment acuN. Where the box forwards nothing by itself (Docker, ufw),
# two further rules of iptables let this ACU out. Everything is taken back by `down`: ip_forward with the last ACU.
set -euo pipefail
# shellcheck source=scripts/machine.sh
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/machine.sh"
# shellcheck source=scripts/nat.sh
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/nat.sh"

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
  read_doors
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

in_list() { [[ -e /run/netns/$namespace && " $(ip netns list | awk '{print $1}' | paste -sd ' ') " == *" $namespace "* ]]; }

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
    $(inside ip -4 route show default 2>/dev/null) == *"via $outside "* &&
    (! -e /proc/sys/net/ipv6/conf/$name || $(<"/proc/sys/net/ipv6/conf/$name/disable_ipv6") == 1) ]]
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
  if [[ -d /proc/sys/net/ipv6 ]]; then run sysctl -q -w "net.ipv6.conf.$name.disable_ipv6=1"; fi # by which the box would be reached
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
  if before=$(shared_last ip-forward) && [[ $before != 1 && $(forwards) == 1 ]]; then # what somebody has set since stays
    run sysctl -q -w "net.ipv4.ip_forward=$before" || return 1
  fi
  leave ip-forward
}

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
  umask "$callers_umask"
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
    needs ip sysctl nsenter unshare
    check_plan
    go_up "${steps[@]}"
    ;;
  down)
    begin down
    go_down "${steps[@]}"
    ;;
  status) tell "${steps[@]}" ;;
esac
