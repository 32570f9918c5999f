# Row 63: reports over a warehouse, each made of parts that run on several hosts. `config` has the plan
# (a file), the root of the warehouse, the program that runs a command on a host, and the directory for
# results.
import json

with open(config["plan"]) as file:
    REPORTS = json.load(file)["reports"]
OUT = config["out"]


def part(wildcards):
    """The files of a part of a report."""
    parts = REPORTS[int(wildcards.report)]["parts"]
    return [f"{config['root']}/{name}" for name in parts[int(wildcards.part)]]


rule all:
    input:
        [f"{OUT}/{report}.txt" for report in range(len(REPORTS))],


rule report:
    input:
        lambda w: [f"{OUT}/{w.report}-{part}.sum" for part in range(len(REPORTS[int(w.report)]["parts"]))],
    output:
        OUT + "/{report}.txt",
    wildcard_constraints:
        report=r"\d+",
    priority: 1000
    shell:
        "cat {input} > {output}"


# A rule for each report, because a priority belongs to a rule: reports run in their order.
for number in range(len(REPORTS)):

    rule:
        name:
            f"part_of_{number}"
        input:
            part,
        output:
            OUT + "/{report}-{part}.sum",
        wildcard_constraints:
            report=str(number),
            part=r"\d+",
        priority: 100 - number
        params:
            host=lambda w: int(w.part) % int(config["hosts"]) + 1,
        shell:
            "{config[on_host]} {params.host} 'cat {input} | sha256sum' > {output}"
