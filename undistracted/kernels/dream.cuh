// Behaviour learning in imagination is four kernels: `imagine` rolls the policy out in the world model, `judge` runs
// reward and critic over what was imagined, forward and back, `pull_back` takes the gradient of the mean return back
// through the dynamics to the actions, and `blame` takes that of the policy's outputs back through its layers.
//
// Arrays are (seed, step, row, ...); a block has rows of one seed. Features have one step more: the start, before all
// others.

constexpr int AP = up(A, 8), ZP = up(Z, 8);  // actions and states, filled up to whole tiles
constexpr int FS = apart(F), NS = apart(N), MS = apart(M), DS = apart(D), XS = apart(Z + A);
