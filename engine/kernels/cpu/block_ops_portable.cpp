// Block operations for any processor.
#include "block_ops_impl.h"

const callgate::BlockOps* callgate::block_ops_portable() { return &OPS; }
