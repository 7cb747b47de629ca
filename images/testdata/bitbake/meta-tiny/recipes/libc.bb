SUMMARY = "c: says how far it is"
do_compile[progress] = "percent"
COMPILE = "for n in 25 50 75 100; do echo $n%; sleep 0.1; done"
