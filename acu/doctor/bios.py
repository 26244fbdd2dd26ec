"""BIOS settings: what bears on an ACU, what each vendor calls it, and which of the doctor's checks shows it from Linux.

bios-checklist.md is written from this table (`acu doctor --reference bios`), and a finding of the doctor names the entries of its
box's own vendor. Nothing here is ever set by ACU. `seen_in` says where the name was read, in material of the vendor or of who
runs its boxes; where it is empty the name is from memory of the field, and is to be looked for near that place.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from acu.doctor.examination import Examination

Vendor = Literal["Dell", "HPE", "Lenovo", "Supermicro", "Inspur"]
WORDS: Final[dict[str, Vendor]] = {
    "dell": "Dell",
    "hewlett": "HPE",
    "hpe": "HPE",
    "hp": "HPE",
    "lenovo": "Lenovo",
    "supermicro": "Supermicro",
    "super": "Supermicro",
    "inspur": "Inspur",
    "ieit": "Inspur",
}
"""Words of DMI's sys_vendor, and whose they are. Inspur's newer boxes say IEIT SYSTEMS."""

GENERATIONS: Final[dict[Vendor, str]] = {
    "Dell": "PowerEdge; F2 at power on, System BIOS. The 13th generation has Snoop Mode (Cluster On Die) under Memory Settings "
    "where later ones have Sub NUMA Cluster. Over the network: `racadm get BIOS.MemSettings`, `BIOS.ProcSettings`, "
    "`BIOS.SysProfileSettings`.",
    "HPE": "ProLiant Gen10 and later; F9 at power on, System Configuration > BIOS/Platform Configuration (RBSU). Gen9 has Power "
    "Management and Performance Options where Gen10 has Power and Performance Options, and no Workload Profile (not confirmed). "
    "Over the network: iLO's Redfish `/redfish/v1/systems/1/bios`, whose names are in brackets.",
    "Lenovo": "ThinkSystem; F1 at power on, System Settings. Menus of boxes with AMD's processors could not be confirmed. "
    "Over the network: OneCLI, whose names are in brackets.",
    "Supermicro": "X11 and later (Intel), H11 and later (AMD); Del at power on, Advanced. What was seen is an X11; X13 has SNC "
    "beside other uncore settings, and H14 has NUMA Nodes per Socket under ACPI Settings. "
    "Over the network: `sum -c GetCurrentBiosCfg`.",
    "Inspur": "NF (since 2023 IEIT SYSTEMS); Del at power on. No menu of Inspur's own could be confirmed: what is written here "
    "is the layout of Intel's reference code, on which its BIOS is built. M6 and M7 may have it under Socket Configuration.",
}


class Entry(Struct, frozen=True):
    """What one vendor calls a setting, and what to set it to."""

    menu: str
    value: str
    seen_in: str = ""

    def __str__(self) -> str:
        return f"{self.menu}: {self.value}"


class Setting(Struct, frozen=True):
    """One thing to set: the checks that show it, how to see it from Linux, and its entry at each vendor."""

    name: str
    why: str
    verify: str
    checks: tuple[str, ...]
    entries: dict[Vendor, Entry]


RACADM, REDFISH = "attribute list of a PowerEdge", "HPE's Redfish reference"
X11, ONECLI = "setup screens of an X11", "OneCLI and ASU scripts"

SETTINGS: Final = (
    Setting(
        "Node interleaving",
        "Disabled, so that Linux sees a node for each processor",
        "`lscpu | grep 'NUMA node(s)'` shows as many nodes as processors (or a multiple of them)",
        ("numa.interleaving",),
        {
            "Dell": Entry("Memory Settings > Node Interleaving", "Disabled", RACADM),
            "HPE": Entry(
                "Memory Options > Node Interleaving (NodeInterleaving)", "Disabled", f"{REDFISH}; the menu was not"
            ),
            "Lenovo": Entry("Memory > Socket Interleave (Memory.SocketInterleave)", "NUMA", ONECLI),
            "Supermicro": Entry(
                "ACPI Settings > NUMA (AMD: NUMA Nodes per Socket)",
                "Enabled (AMD: NPS1, never NPS0)",
                f"{X11}, manual of an H14",
            ),
            "Inspur": Entry("Processor > Common RefCode Configuration > Numa", "Enabled"),
        },
    ),
    Setting(
        "Memory mirroring and sparing",
        "Off, so that all memory that is installed can be used",
        "`free -m` against `dmidecode -t memory | grep Size`",
        ("numa.mirroring",),
        {
            "Dell": Entry("Memory Settings > Memory Operating Mode", "Optimizer Mode", RACADM),
            "HPE": Entry(
                "Memory Options > Advanced Memory Protection (AdvancedMemProtection)",
                "Advanced ECC Support",
                f"{REDFISH}; the menu was not",
            ),
            "Lenovo": Entry("Memory > Mirror Configuration", "Disabled"),
            "Supermicro": Entry(
                "Chipset Configuration > North Bridge > Memory Configuration > Memory RAS Configuration > Mirror mode",
                "Disable",
                X11,
            ),
            "Inspur": Entry(
                "Processor > Memory Configuration > Memory RAS Configuration > Mirror Mode",
                "Disable",
                "Intel's reference code; not at Inspur",
            ),
        },
    ),
    Setting(
        "Size of NUMA groups",
        "Clustered: processors are told by their nodes, not in groups over them",
        "`numactl -H` shows each processor's CPUs in its own node",
        ("numa.interleaving", "numa.clustering"),
        {
            "Dell": Entry("(none: nodes are always told by processor)", "nothing to set"),
            "HPE": Entry(
                "Power and Performance Options > NUMA Group Size Optimization (NumaGroupSizeOpt)",
                "Clustered",
                "HPE's Gen10 UEFI guide",
            ),
            "Lenovo": Entry("(none: nodes are always told by processor)", "nothing to set"),
            "Supermicro": Entry(
                "ACPI Settings > ACPI SRAT L3 Cache as NUMA Domain (AMD)", "Disabled", "manual of an H14"
            ),
            "Inspur": Entry("(none known)", "nothing to set"),
        },
    ),
    Setting(
        "SNC and NPS",
        "A processor is one node (SNC disabled, NPS1), unless everything is pinned",
        "`lscpu`: nodes = sockets; `cat /sys/devices/system/node/node*/meminfo | grep MemTotal`",
        ("numa.clustering",),
        {
            "Dell": Entry(
                "Processor Settings > Sub NUMA Cluster (AMD: NUMA Nodes Per Socket; 13th generation: Memory "
                "Settings > Snoop Mode)",
                "Disabled (AMD: 1; not Cluster On Die)",
                f"{RACADM}: the last; racadm scripts: SubNumaCluster",
            ),
            "HPE": Entry(
                "Power and Performance Options > Sub-NUMA Clustering (SubNumaClustering; AMD: NUMA memory "
                "domains per socket)",
                "Disabled (AMD: one)",
                f"{REDFISH}; the menu was not",
            ),
            "Lenovo": Entry(
                "Processors > SNC (Processors.SNC; AMD: NUMA Nodes per Socket)", "Disabled (AMD: NPS1)", ONECLI
            ),
            "Supermicro": Entry(
                "Chipset Configuration > North Bridge > UPI Configuration > SNC (AMD: ACPI Settings > NUMA "
                "Nodes per Socket)",
                "Disable (AMD: NPS1)",
                f"{X11}, manuals of an X13 and an H14",
            ),
            "Inspur": Entry("Processor > UPI Configuration > Sub NUMA Cluster", "Disabled"),
        },
    ),
    Setting(
        "Power profile and C-states",
        "Performance: CPUs that wake at once and stay at a high clock",
        "`cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor`; `cpupower idle-info`",
        ("kernel.governor",),
        {
            "Dell": Entry(
                "System Profile Settings > System Profile",
                "Performance (or Custom with C States Disabled)",
                "racadm scripts: SysProfile",
            ),
            "HPE": Entry(
                "Workload Profile (WorkloadProfile); Gen9: Power Management > HP Power Profile",
                "Low Latency, or Custom with Minimum Processor Idle Power Core C-State: No C-states",
                REDFISH,
            ),
            "Lenovo": Entry(
                "Operating Modes > Choose Operating Mode (OperatingModes.ChooseOperatingMode)",
                "Maximum Performance",
                f"{ONECLI}, Lenovo Press LP1836",
            ),
            "Supermicro": Entry(
                "CPU Configuration > Advanced Power Management Configuration > Power Technology; CPU C State "
                "Control > Package C State limit",
                "Custom, and C0/C1 state",
                X11,
            ),
            "Inspur": Entry(
                "Processor > Advanced Power Management Configuration > Power/Performance Profile", "Performance"
            ),
        },
    ),
    Setting(
        "Memory windows above 4 GiB",
        "Enabled: the card's 32 GiB window (BAR1) does not fit below",
        "`lspci -vv -s BDF | grep Region` shows sizes for all regions; `dmesg | grep -i 'BAR.*assign'` is silent",
        ("gpu.driver",),
        {
            "Dell": Entry("Integrated Devices > Memory Mapped I/O above 4GB", "Enabled", f"{RACADM}: the name"),
            "HPE": Entry("(Gen10 and later: always on; Gen9: PCI Express 64-bit BAR Support)", "Enabled"),
            "Lenovo": Entry(
                "Devices and I/O Ports > MM Config Base, PCI 64-Bit Resource Allocation", "Auto and Enabled"
            ),
            "Supermicro": Entry("PCIe/PCI/PnP Configuration > Above 4G Decoding", "Enabled", X11),
            "Inspur": Entry("Advanced > PCI Subsystem Settings > Above 4G Decoding", "Enabled"),
        },
    ),
    Setting(
        "Lanes of the slot",
        "All 16 lanes to the card: the slot is not split",
        "`lspci -vv -s BDF | grep -e LnkCap: -e LnkSta:` shows Width x16 twice",
        ("gpu.pcie-width",),
        {
            "Dell": Entry("Integrated Devices > Slot Bifurcation", "Default Bifurcation (the slot's x16)"),
            "HPE": Entry("PCIe Device Configuration > (slot) > PCIe Bifurcation Options", "Auto (no bifurcation)"),
            "Lenovo": Entry("Devices and I/O Ports > PCIe Gen/Speed and Slot Bifurcation", "x16, or Auto"),
            "Supermicro": Entry(
                "Chipset Configuration > North Bridge > IIO Configuration > CPU Configuration > IOU (IIO PCIe Br)",
                "x16, or Auto",
                X11,
            ),
            "Inspur": Entry(
                "Processor > IIO Configuration > Socket Configuration > IOU (IIO PCIe Br)",
                "x16, or Auto",
                "Intel's reference code; not at Inspur",
            ),
        },
    ),
    Setting(
        "Speed of the slot, and ASPM",
        "The card's own generation (4 for an A10G), no power saving on the link",
        "`lspci -vv -s BDF | grep -e LnkSta: -e ASPM` under load shows 16GT/s, and ASPM Disabled",
        ("gpu.pcie-generation",),
        {
            "Dell": Entry(
                "System Profile Settings > PCI ASPM L1 Link Power Management",
                "Disabled (with System Profile: Performance it is)",
            ),
            "HPE": Entry(
                "PCIe Device Configuration > (slot) > Maximum PCIe Link Speed; PCIe Power Management (ASPM)",
                "Auto, and Disabled",
            ),
            "Lenovo": Entry("Devices and I/O Ports > PCIe Gen/Speed; Power > ASPM", "Auto (or Gen4), and Disabled"),
            "Supermicro": Entry(
                "Chipset Configuration > North Bridge > IIO Configuration > CPU Configuration > (slot) > Link "
                "Speed; PCI-E ASPM Support (Global)",
                "Auto (or Gen 4), and No",
                X11,
            ),
            "Inspur": Entry(
                "Processor > IIO Configuration > (port) > Link Speed; PCIe ASPM Support",
                "Auto (or Gen 4), and Disabled",
            ),
        },
    ),
    Setting(
        "IOMMU and SR-IOV",
        "Off where no virtual machine needs it; else passed through by the kernel (iommu=pt)",
        "`cat /sys/kernel/iommu_groups/*/type | sort | uniq -c` shows identity, or there are no groups",
        ("kernel.iommu",),
        {
            "Dell": Entry(
                "Processor Settings > Virtualization Technology; Integrated Devices > SR-IOV Global Enable",
                "Disabled, both",
                f"{RACADM}: the first",
            ),
            "HPE": Entry(
                "Virtualization Options > Intel VT-d (AMD: AMD I/O Virtualization Technology); SR-IOV "
                "(IntelProcVtd, Sriov)",
                "Disabled, both",
                f"{REDFISH}; the menu was not",
            ),
            "Lenovo": Entry(
                "Devices and I/O Ports > Intel VT for Directed I/O (VT-d) (AMD: IOMMU); SR-IOV", "Disabled, both"
            ),
            "Supermicro": Entry(
                "Chipset Configuration > North Bridge > IIO Configuration > Intel VT for Directed I/O (VT-d) "
                "(AMD: NB Configuration > IOMMU); PCIe/PCI/PnP Configuration > SR-IOV Support",
                "Disabled, both",
                f"{X11}, a guide for AMD's",
            ),
            "Inspur": Entry(
                "Processor > IIO Configuration > Intel VT for Directed I/O (VT-d); Advanced > PCI Subsystem "
                "Settings > SR-IOV Support",
                "Disabled, both",
                "Intel's reference code; not at Inspur",
            ),
        },
    ),
    Setting(
        "Slots of card, disk and memory",
        "Card and NVMe disk in slots of one processor, memory in that processor's slots; a BIOS that "
        "tells where they are",
        "`cat /sys/bus/pci/devices/BDF/numa_node` is no -1, and the same for card and disk",
        ("numa.gpu-node", "numa.gpu-unknown", "numa.disk-node", "numa.empty-node", "numa.unequal"),
        {
            "Dell": Entry(
                "Installation and Service Manual, expansion card installation guidelines; newest BIOS by "
                "Lifecycle Controller",
                "slots of one processor",
            ),
            "HPE": Entry(
                "QuickSpecs, PCIe slots and their processor; Power and Performance Options > ACPI SLIT (AcpiSlit)",
                "slots of one processor, and Enabled",
                f"{REDFISH}: the second",
            ),
            "Lenovo": Entry(
                "Setup Guide, PCIe slots and processors; newest UEFI by XClarity", "slots of one processor"
            ),
            "Supermicro": Entry(
                "the board's slots are labelled CPU1 SLOT, CPU2 SLOT; newest BIOS", "slots of one processor", X11
            ),
            "Inspur": Entry(
                "the box's white paper, PCIe risers and their processor; newest BIOS by the BMC",
                "slots of one processor",
            ),
        },
    ),
)


def vendor_of(examination: Examination) -> Vendor | None:
    """Whose firmware a box has; None where it is nobody's of these, or a virtual machine's."""
    if examination.firmware.virtual:
        return None
    words = examination.firmware.vendor.lower().replace("-", " ").replace(",", " ").split()
    return next((WORDS[word] for word in words if word in WORDS), None)


def entries(check: str, examination: Examination) -> tuple[str, ...]:
    """What the box's vendor calls the settings that the check shows, a line each; of an unknown vendor just their names."""
    settings = [setting for setting in SETTINGS if check in setting.checks]
    if examination.firmware.virtual or not settings:
        return ()
    vendor = vendor_of(examination)
    if vendor is None:
        return tuple(f"{setting.name}: {setting.why} (bios-checklist.md)" for setting in settings)
    found = [setting.entries[vendor] for setting in settings if not setting.entries[vendor].menu.startswith("(none")]
    return tuple(f"{vendor}: {entry}" for entry in found)


HEAD = """\
# BIOS checklist

What to set in the firmware of a box for ACU, by vendor, and how to see from Linux that it is so. ACU never changes any of it:
`acu doctor` reports what it finds, under the names in the column *check*, and prints the entry of the box's own vendor with
each finding. This page is the output of `acu doctor --reference bios`.

Menus differ by generation and by BIOS version. *Seen in* says where a name was read; where it is empty, the name could not be
confirmed: look for it near that place. Change one thing at a time, and run `acu doctor` after each boot.

## How to verify from Linux

BDF is the card's address: `nvidia-smi --query-gpu=pci.bus_id --format=csv`, or `lspci -d 10de:`.

| setting | wanted | command | check |
|---|---|---|---|
"""


def checklist() -> str:
    """bios-checklist.md."""
    lines = [HEAD.rstrip("\n")]
    lines += [f"| {one.name} | {one.why} | {_cell(one.verify)} | {_ids(one.checks)} |" for one in SETTINGS]
    for vendor, generations in GENERATIONS.items():
        lines += [
            "",
            f"## {vendor}",
            "",
            generations,
            "",
            "| setting | menu | set to | check | seen in |",
            "|---|---|---|---|---|",
        ]
        for setting in SETTINGS:
            entry = setting.entries[vendor]
            lines.append(
                f"| {setting.name} | {entry.menu} | {entry.value} | {_ids(setting.checks)} | {entry.seen_in} |"
            )
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text in a table: a bar would end its cell, within backticks too."""
    return text.replace("|", "\\|")


def _ids(checks: tuple[str, ...]) -> str:
    return ", ".join(f"`{check}`" for check in checks)
