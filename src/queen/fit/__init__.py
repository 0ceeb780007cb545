"""From a trained model and its data to a guard: `protect`, `calibrate`, and the data and files that users bring.

The only place where maps, discs, shadows and calibrations are made. Commands, defenses and the demo call it; the
server never does: it only ever sees a finished bundle.
"""
