"""Short system names, as deployment planners use them, and their devices."""

from foretune.device import canonical_name

SYSTEMS = {
    "a30": "NVIDIA A30",
    "a40": "NVIDIA A40",
    "a100_sxm": "NVIDIA A100-SXM4-80GB",
    "a100_pcie": "NVIDIA A100 80GB PCIe",
    "b60": "Intel Arc Pro B60",
    "b200_sxm": "NVIDIA B200",
    "b300_sxm": "NVIDIA B300 SXM6 AC",
    "gb200": "NVIDIA GB200",
    "gb200_sxm": "NVIDIA GB200",
    "gb300": "NVIDIA GB300",
    "gb300_sxm": "NVIDIA GB300",
    "h100_pcie": "NVIDIA H100 PCIe",
    "h100_sxm": "NVIDIA H100 80GB HBM3",
    "h200_sxm": "NVIDIA H200",
    "l4": "NVIDIA L4",
    "l40s": "NVIDIA L40S",
    "rtx_pro_6000_server": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
}
"""System -> device name as reported by its driver."""


def device_of_system(system: str) -> str:
    """Return the system's device name; an unknown system keeps its name."""
    return SYSTEMS.get(system) or canonical_name(system)
