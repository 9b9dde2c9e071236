"""What public tools said of the scenarios F01 to F27 and H0 to H3, as measured for this project with a simulated driver.

Of each tool: how it was called, and its marks. They ran with real pynvml
on a simulated libnvidia-ml.so.1; checks that need DCGM or sysfs could not run there and are not represented.
"""

from __future__ import annotations

TOOLS = {
    "azurehpc-nhc": "the GPU checks of its H100 configuration",
    "gpucm": "`check-nvidia-smi` and `check-syslogs xid` (0.0.2)",
    "brokkr": "`--run health` (0.6.1)",
    "gpumedic": "`scan --expect-gpus 8` (0.1.0)",
}
# In the order of TOOLS: F fault, W warning, . nothing.
MARKS = {
    "H0": ". . . .",
    "H1": ". . W .",
    "H2": ". . F .",
    "H3": ". W . W",
    "F01": ". . W W",
    "F02": ". . . .",
    "F03": ". . . .",
    "F04": "F F . F",
    "F05": "F F W W",
    "F06": "F F F F",
    "F07": ". . W .",
    "F08": ". . W .",
    "F09": ". . . .",
    "F10": ". F . .",
    "F11": "F . W .",
    "F12": ". F . .",
    "F13": ". . F W",
    "F14": ". . . .",
    "F15": "F F F W",
    "F16": ". F . F",
    "F17": ". F . .",
    "F18": ". . W .",
    "F19": ". . . .",
    "F20": ". . . .",
    "F21": ". . . .",
    "F22": ". . . .",
    "F23": "F W F F",
    "F24": "F W F F",
    "F25": "F F F F",
    "F26": ". F F F",
    "F27": "F F . F",
}
