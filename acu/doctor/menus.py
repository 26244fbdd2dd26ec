"""The menus of BIOSes: what bears on an ACU, what each vendor calls it, what to set it to, and by what the name was confirmed.

A table and nothing else; bios.py makes the page and the findings' lines of it. Nothing here is ever set by ACU. `seen_in` names
what of the vendor, or of who runs its boxes, the name was read in (SOURCES has addresses); where it is empty the name is from
memory of the field, and is to be looked for near that place.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

Vendor = Literal["Dell", "HPE", "Lenovo", "Supermicro", "Inspur"]

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
    "Inspur": "NF (since 2023 IEIT SYSTEMS); Del at power on. No manual of Inspur's own was found that names a menu: what is "
    "written here is the layout of Intel's reference code, on which its BIOS is built. M6 and M7 may have it under Socket "
    "Configuration.",
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
DELL_15G, OMSA, GEN10 = "Dell's guide for 15G", "OpenManage's help", "HPE's Gen10 UEFI guide"
XEON6, H12, H14 = "Lenovo's UEFI manual for Xeon 6", "setup screens of an H12", "manual of an H14"

SOURCES: Final = {
    DELL_15G: "Setting up BIOS on 15th Generation (15G) Dell EMC PowerEdge Servers, deployment guide 508",
    OMSA: "OpenManage Server Administrator, help on BIOS settings (srvadmin-tomcat), <https://linux.dell.com/repo/hardware/>",
    RACADM: "output of racadm and of WS-Man's enumeration of BIOS attributes, in public repositories",
    "setup guides for PowerEdges": "by who runs them, in public repositories",
    "manual of a C6420": "Dell EMC PowerEdge C6420, Installation and Service Manual, table of memory operating modes",
    "manual of an R6525": "Dell PowerEdge R6525 and R7515, Installation and Service Manual, NUMA Nodes per Socket",
    REDFISH: "HPE's reference of BIOS attributes for iLO's Redfish, <https://servermanagementportal.ext.hpe.com>",
    "attribute list of a DL360": "iLO's Redfish, as read by who runs it, in a public repository",
    GEN10: "UEFI System Utilities User Guide for HPE ProLiant Gen10, <https://support.hpe.com/techlib/docs/iss/proliant-gen10-uefi/>",
    "advisory 2019-0011": "Hitachi, who sells HPE's boxes as HA8000V, "
    "<http://www.hitachi.co.jp/products/it/ha8000v/support/productinfo/adv-2019-0011.html>",
    XEON6: "<https://pubs.lenovo.com/uefi_xeon_6th/>",
    ONECLI: "scripts for OneCLI and ASU, and attributes as XClarity's Redfish shows them, by who runs ThinkSystems",
    "Lenovo Press LP1477": "<https://lenovopress.lenovo.com/lp1477>, as quoted by who runs an SR630 V2",
    "Lenovo Press LP1836": "<https://lenovopress.lenovo.com/lp1836-tuning-uefi-settings-4th-gen-intel-xeon-scalable-processor>",
    "Lenovo Press LP2283": "<https://lenovopress.lenovo.com/"
    "lp2283-balanced-memory-configurations-with-5th-generation-amd-epyc-processors>",
    X11: "FD.io, configuration of its Supermicro Skylake servers, "
    "<https://github.com/FDio/csit/blob/master/docs/lab/testbeds_sm_skx_hw_bios_cfg.md>",
    H12: "the same, of its EPYC 7002 servers, "
    "<https://github.com/FDio/csit/blob/master/docs/lab/testbeds_sm_zn2_hw_bios_cfg.md>",
    H14: "<https://www.supermicro.com/support/manuals/product/motherboard/h14dst-f/>",
    "manual of an X11DDW-L": "Supermicro X11DDW-L User's Manual, chapter 4, page 93",
}
"""Whose material a name was read in, and where that is, as far as it has an address."""

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
                f"{X11}, {H12}, {H14}",
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
            "Dell": Entry("Memory Settings > Memory Operating Mode", "Optimizer Mode", f"{RACADM}, manual of a C6420"),
            "HPE": Entry(
                "Memory Options > Advanced Memory Protection (AdvancedMemProtection)",
                "Advanced ECC Support, or Fault Tolerant Memory (ADDDC); neither a spare nor a mirror",
                f"{REDFISH}, advisory 2019-0011; the menu was not",
            ),
            "Lenovo": Entry(
                "Memory > Mirror Configuration > Full Mirror; Partial Mirror (Memory.FullMirror, Memory.PartialMirror)",
                "Disabled, both",
                f"{XEON6}, {ONECLI}",
            ),
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
                GEN10,
            ),
            "Lenovo": Entry("(none: nodes are always told by processor)", "nothing to set"),
            "Supermicro": Entry("ACPI Settings > ACPI SRAT L3 Cache as NUMA Domain (AMD)", "Disabled", H14),
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
                f"{RACADM}: the last; racadm scripts: SubNumaCluster; manual of an R6525: AMD's",
            ),
            "HPE": Entry(
                "Power and Performance Options > Sub-NUMA Clustering (SubNumaClustering; AMD: NUMA memory "
                "domains per socket)",
                "Disabled (AMD: one)",
                f"{REDFISH}; the menu was not",
            ),
            "Lenovo": Entry(
                "Processors > SNC (Processors.SNC; AMD: NUMA Nodes per Socket)",
                "Disabled (AMD: NPS1)",
                f"{ONECLI}: Intel's; Lenovo Press LP2283: AMD has NPS",
            ),
            "Supermicro": Entry(
                "Chipset Configuration > North Bridge > UPI Configuration > SNC (AMD: ACPI Settings > NUMA "
                "Nodes per Socket)",
                "Disable (AMD: NPS1)",
                f"{X11}, manual of an X13, {H12}, {H14}",
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
                f"{OMSA}; racadm scripts: SysProfile",
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
                "Control > Package C State limit (AMD: CPU Configuration > Global C-state control)",
                "Custom, and C0/C1 state (AMD: Disabled)",
                f"{X11}, {H12}",
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
            "HPE": Entry(
                "(Gen10 and later: always on; Gen9: PCI Express 64-bit BAR Support)",
                "Enabled",
                "attribute list of a DL360: it has none; not Gen9's",
            ),
            "Lenovo": Entry(
                "Devices and I/O Ports > MM Config Base, PCI 64-Bit Resource Allocation (DevicesandIOPorts.MMConfigBase, "
                "DevicesandIOPorts.PCI64BitResourceAllocation)",
                "Auto and Enabled",
                ONECLI,
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
            "Dell": Entry(
                "Integrated Devices > Slot Bifurcation > Auto Discovery Bifurcation Settings",
                "Platform Default Bifurcation (or x16, by Manual Bifurcation Control)",
                f"{DELL_15G}, {OMSA}",
            ),
            "HPE": Entry(
                "PCIe Device Configuration > (slot) > PCIe Slot N Bifurcation (PciSlotNBifurcation)",
                "Auto, or No Bifurcation",
                f"{REDFISH}; the menu was not",
            ),
            "Lenovo": Entry(
                "Devices and I/O Ports > Override Slot Bifurcation > (slot) (DevicesandIOPorts.Bifurcation_SlotN)",
                "x16",
                f"{XEON6}, {ONECLI}",
            ),
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
                "setup guides for PowerEdges",
            ),
            "HPE": Entry(
                "PCIe Device Configuration > (slot) > PCIe Link Speed; PCIe Power Management (ASPM) "
                "(PciSlotNLinkSpeed, PciSlotNAspm)",
                "Auto, and Disabled",
                f"{REDFISH}; the menu was not",
            ),
            "Lenovo": Entry(
                "Devices and I/O Ports > PCIe Gen/Speed; Power > ASPM (Power.ASPM; ThinkSystem V2 and later)",
                "Auto (or Gen4), and Disabled",
                "Lenovo Press LP1477: the second; not the first",
            ),
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
                "Devices and I/O Ports > Intel VT for Directed I/O (VT-d) (AMD: IOMMU); SR-IOV "
                "(DevicesandIOPorts.IntelVTforDirectedIOVTd, DevicesandIOPorts.SRIOV)",
                "Disabled, both",
                f"{ONECLI}; not AMD's",
            ),
            "Supermicro": Entry(
                "Chipset Configuration > North Bridge > IIO Configuration > Intel VT for Directed I/O (VT-d) "
                "(AMD: NB Configuration > IOMMU); PCIe/PCI/PnP Configuration > SR-IOV Support",
                "Disabled, both",
                f"{X11}, manual of an X11DDW-L; {H12}: AMD's",
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
                "its own title",
            ),
            "HPE": Entry(
                "QuickSpecs, PCIe slots and their processor; Power and Performance Options > ACPI SLIT (AcpiSlit), and there I/O "
                "Options > Memory Proximity Reporting for I/O",
                "slots of one processor, and Enabled, both",
                f"{REDFISH}: the second, {GEN10}: the third",
            ),
            "Lenovo": Entry(
                "Setup Guide, PCIe slots and processors; newest UEFI by XClarity",
                "slots of one processor",
                "its own title",
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
