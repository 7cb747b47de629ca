// A pass for LLVM's opt that counts the basic blocks of each function by how many loops they
// stand in: opt -load-pass-plugin=slipway-llvm-loops.so -passes=loop-depth -disable-output x.ll
#include "llvm/ADT/DepthFirstIterator.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/IR/PassManager.h"
#include "llvm/Passes/PassBuilder.h"
#if __has_include("llvm/Passes/PassPlugin.h")
#include "llvm/Passes/PassPlugin.h"
#else // since LLVM 22
#include "llvm/Plugins/PassPlugin.h"
#endif
#include "llvm/Support/raw_ostream.h"
#include <vector>

using namespace llvm;

namespace {

struct LoopDepth : PassInfoMixin<LoopDepth> {
  PreservedAnalyses run(Function &F, FunctionAnalysisManager &AM) {
    auto &Loops = AM.getResult<LoopAnalysis>(F);
    std::vector<unsigned> Blocks(1);
    for (BasicBlock *B : depth_first(&F)) {
      unsigned Depth = Loops.getLoopDepth(B);
      if (Depth >= Blocks.size())
        Blocks.resize(Depth + 1);
      Blocks[Depth]++;
    }
    outs() << "function=" << F.getName();
    for (size_t Depth = 0; Depth < Blocks.size(); Depth++)
      outs() << " depth" << Depth << "=" << Blocks[Depth];
    outs() << "\n";
    return PreservedAnalyses::all();
  }
  // Functions that are not to be optimized are counted too.
  static bool isRequired() { return true; }
};

} // namespace

extern "C" LLVM_ATTRIBUTE_WEAK PassPluginLibraryInfo llvmGetPassPluginInfo() {
  return {LLVM_PLUGIN_API_VERSION, "slipway-llvm-loops", "0.1", [](PassBuilder &PB) {
            PB.registerPipelineParsingCallback([](StringRef Name, FunctionPassManager &PM, ArrayRef<PassBuilder::PipelineElement>) {
              if (Name != "loop-depth")
                return false;
              PM.addPass(LoopDepth());
              return true;
            });
          }};
}
