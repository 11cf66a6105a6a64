"""What this machine is: cores, instruction sets, memory (no torch), and devices (engine.platform.device, torch)."""
