"""From LLVM's language to machine code, in a process of its own: the compiler's 35 MB are not those of a run.

It reads the one from its standard input and writes the other, for the processor that its arguments name with its
features, and imports nothing of this library.
"""

import sys

import llvmlite.binding as llvm


def main() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name, features = sys.argv[1:]
    machine = llvm.Target.from_default_triple().create_target_machine(name, features, 3)
    module = llvm.parse_assembly(sys.stdin.read())
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    sys.stdout.buffer.write(machine.emit_object(module))


if __name__ == "__main__":
    main()
