; Loops whose blocks are counted by hand: the suite llvm-loops knows the answer.

declare i1 @more(i32)

; One block, no loop.
define void @none() {
  ret void
}

; A loop of three blocks in a function of five, and a block that nothing reaches.
define void @one() {
entry:
  br label %head
head:
  %c = call i1 @more(i32 1)
  br i1 %c, label %body, label %exit
body:
  %d = call i1 @more(i32 2)
  br i1 %d, label %latch, label %exit
latch:
  br label %head
exit:
  ret void
lost:
  br label %exit
}

; A loop in a loop in a loop. Each has a head and a latch, and the innermost a body.
define void @three() {
entry:
  br label %a
a:
  %ca = call i1 @more(i32 1)
  br i1 %ca, label %b, label %exit
b:
  %cb = call i1 @more(i32 2)
  br i1 %cb, label %c, label %a.latch
c:
  %cc = call i1 @more(i32 3)
  br i1 %cc, label %body, label %b.latch
body:
  br label %c
b.latch:
  br label %b
a.latch:
  br label %a
exit:
  ret void
}

; Two loops, one after the other. The first is one block alone.
define void @two() {
entry:
  br label %self
self:
  %c = call i1 @more(i32 1)
  br i1 %c, label %self, label %head
head:
  %d = call i1 @more(i32 2)
  br i1 %d, label %body, label %exit
body:
  br label %head
exit:
  ret void
}

; A circle with two entries has no head, so LLVM calls it no loop.
define void @irreducible() {
entry:
  %c = call i1 @more(i32 1)
  br i1 %c, label %left, label %right
left:
  %d = call i1 @more(i32 2)
  br i1 %d, label %right, label %exit
right:
  br label %left
exit:
  ret void
}
