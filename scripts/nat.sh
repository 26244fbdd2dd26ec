# shellcheck shell=bash disable=SC2154 # $name, $network and $host_ports from what sources this
# The roads of an ACU's namespace: out by NAT, from outside only what answers, and to the box itself, or to the cloud's metadata
# (whose credentials are the box's), next to nothing. Sourced by netns.sh, after machine.sh, never run; the steps nat and passing.
#
# In nft it is one table, made, and made anew, in one transaction. In iptables, rules with the comment acuN, and the chains acuN-host
# (what comes to the box) and acuN-out (what goes to a metadata service), in which RETURN leaves the verdict to the box's own rules;
# while those of a running ACU are made anew its link is down, and it stays down where that fails. What is refused on the way out is
# refused aloud, so that a tool fails at once; what comes in, in silence.
#
# N.was/doors remembers how the roads were asked for: "PORTS METADATA".

# Where clouds tell a machine who it is: link-local ones (AWS, Azure, GCP and most), Azure's wire server, Alibaba's. Names are asked of
# some of them, and may be.
metadata_at='169.254.0.0/16,168.63.129.16,100.100.100.200'

# Sets $host_ports (none, all, or a list) and $metadata (closed, open): as this call says, else as it was, else closed.
read_doors() {
  local before
  before=$(kept doors) || before='none closed'
  host_ports=${ACU_HOST_PORTS:-${before% *}} metadata=${ACU_METADATA:-${before#* }}
  host_ports=${host_ports// /,}
  local port='(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})'
  [[ $host_ports =~ ^(none|all|$port(,$port)*)$ ]] ||
    wrong "ACU_HOST_PORTS is none, all, or TCP ports of this box such as 5432,9000, not '$host_ports'"
  [[ $metadata == closed || $metadata == open ]] || wrong "ACU_METADATA is closed or open, not '$metadata'"
}

nat_there() {
  local table forwards
  [[ $(kept doors) == "$host_ports $metadata" ]] && kept nat >/dev/null || return 1
  if have nft; then
    table=$(nft list table ip "$name" 2>/dev/null) || return 1
    [[ $table == *"ip saddr $network"*masquerade*drop* && ($host_ports == all || $table == *"hook input"*reject*) ]] &&
      [[ $metadata == open || $table == *169.254.0.0/16*reject* ]]
  else
    forwards=3
    if [[ $metadata == closed ]]; then forwards+=+1; fi
    if [[ $host_ports != all ]]; then forwards+=+1; fi
    (($(ipt_rules nat POSTROUTING | wc -l) == 1 && $(ipt_rules filter FORWARD | wc -l) == forwards)) &&
      { [[ $host_ports == all ]] || (($(ipt_rules filter INPUT | wc -l) == 1)); }
  fi
}

nat_up() {
  local again=''
  kept nat >/dev/null || refuse_others
  if kept nat >/dev/null && [[ " ${begun[*]} " != *" link "* ]]; then
    again=yes
    begun=("${begun[@]:1}") # the link stays where this fails: to take its walls back would open what is closed
  fi
  keep nat "$name"
  if have nft; then
    if table_there; then run nft "delete table ip $name; $(nft_table)"; else run nft "$(nft_table)"; fi
    remove_iptables
    warn_of_closed_tables
  else
    if [[ $again ]]; then run ip link set "$name" down; fi
    remove_iptables
    add_iptables
    if [[ $again ]]; then run ip link set "$name" up; fi
  fi
  forget doors
  keep doors "$host_ports $metadata"
}

add_iptables() {
  run iptables -w -t nat -I POSTROUTING -s "$network" ! -o "$name" -m comment --comment "$name" -j MASQUERADE
  run iptables -w -I FORWARD -o "$name" -m comment --comment "$name" -j DROP
  let_pass
  if [[ $metadata == closed ]]; then close_metadata; fi
  if [[ $host_ports != all ]]; then close_host; fi
}

nat_down() {
  kept nat >/dev/null || return 0
  remove_nat || return 1
  forget doors
  forget nat
}

nat_says() { printf 'to this box ICMP and DNS%s; metadata of clouds %s' "$([[ $host_ports == none ]] || printf ', and TCP to %s' "$host_ports")" "$metadata"; }

table_there() { have nft && nft list table ip "$name" >/dev/null 2>&1; }

refuse_others() {
  local rules=''
  ! table_there || die "there is a table ip $name of nft that is not this ACU's. Remove it: nft delete table ip $name"
  if have iptables; then rules=$(ipt_rules nat POSTROUTING && ipt_rules filter FORWARD && ipt_rules filter INPUT); fi
  [[ ! $rules ]] || die "there are rules of iptables with the comment $name that are not this ACU's. Remove them (with -D for -A): ${rules//$'\n'/; }"
}

remove_nat() {
  local code=0
  if table_there; then run nft delete table ip "$name" || code=1; fi
  remove_iptables || code=1
  return "$code"
}

remove_iptables() {
  local code=0 chain
  have iptables || return 0
  ipt_remove nat POSTROUTING || code=1
  ipt_remove filter FORWARD || code=1
  ipt_remove filter INPUT || code=1
  for chain in "$name-host" "$name-out"; do
    if iptables -w -S "$chain" >/dev/null 2>&1; then
      run iptables -w -F "$chain" && run iptables -w -X "$chain" || code=1
    fi
  done
  return "$code"
}

# The TCP ports of the box that may be asked. One that the box hands on (a container's that is published) is a port of the box.
open_ports() {
  local ports=53
  if [[ $host_ports != none ]]; then ports+=,$host_ports; fi
  printf '%s\n' "${ports//,/ }"
}

# In one transaction: all of it, or nothing.
nft_table() {
  local port
  printf 'table ip %s { ' "$name"
  printf 'chain out { type nat hook postrouting priority srcnat; ip saddr %s oifname != "%s" masquerade; }; ' "$network" "$name"
  printf 'chain in { type filter hook forward priority filter; '
  printf 'oifname "%s" ct state established,related accept; oifname "%s" drop; ' "$name" "$name"
  if [[ $metadata == closed ]]; then
    printf 'iifname "%s" udp dport 53 accept; iifname "%s" tcp dport 53 accept; ' "$name" "$name"
    printf 'iifname "%s" ip daddr { %s } reject; ' "$name" "${metadata_at//,/, }"
  fi
  if [[ $host_ports != all ]]; then
    for port in $(open_ports); do
      printf 'iifname "%s" ct status dnat meta l4proto tcp ct original proto-dst %s accept; ' "$name" "$port"
    done
    printf 'iifname "%s" ct status dnat reject; ' "$name"
  fi
  printf '}; '
  if [[ $host_ports != all ]]; then
    printf 'chain host { type filter hook input priority filter; iifname != "%s" accept; ct state established,related accept; ' "$name"
    printf 'ip protocol icmp accept; udp dport 53 accept; tcp dport 53 accept; '
    if [[ $host_ports != none ]]; then printf 'tcp dport { %s } accept; ' "${host_ports//,/, }"; fi
    printf 'reject; }; '
  fi
  printf '}\n'
}

close_metadata() {
  run iptables -w -N "$name-out"
  run iptables -w -A "$name-out" -p udp --dport 53 -j RETURN
  run iptables -w -A "$name-out" -p tcp --dport 53 -j RETURN
  run iptables -w -A "$name-out" -d "$metadata_at" -j REJECT
  run iptables -w -I FORWARD -i "$name" -m comment --comment "$name" -j "$name-out"
}

close_host() {
  local port
  run iptables -w -N "$name-host"
  run iptables -w -A "$name-host" -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
  run iptables -w -A "$name-host" -p icmp -j RETURN
  run iptables -w -A "$name-host" -p udp --dport 53 -j RETURN
  for port in $(open_ports); do run iptables -w -A "$name-host" -p tcp -m conntrack --ctorigdstport "$port" -j RETURN; done
  run iptables -w -A "$name-host" -j REJECT
  run iptables -w -I INPUT -i "$name" -m comment --comment "$name" -j "$name-host"
  run iptables -w -I FORWARD -i "$name" -m conntrack --ctstate DNAT -m comment --comment "$name" -j "$name-host"
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
