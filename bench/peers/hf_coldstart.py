"""From the start of the process to the end of the first training step with transformers and PEFT:
hf_coldstart.py --model FILE --rows ROWS.jsonl."""

import argparse

from hf_common import Trainer, add_lora, best_dtype, load_model, process_age_s, read_rows, report

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--rows", required=True)
args = parser.parse_args()
import peft  # noqa: E402
import transformers  # noqa: E402, F401

imported = process_age_s()
trainer = Trainer(add_lora(load_model(args.model, best_dtype())))
loaded = process_age_s()
rows = read_rows(args.rows)[:1]
trainer.step(rows, [[0]])
report(program="hf_coldstart", imported_s=imported, loaded_s=loaded, first_step_s=process_age_s(),
       tokens=len(rows[0]["input_ids"]))
