do_compile[depends] = "liba:do_deploy"
COMPILE = "echo cannot find -lnothing; exit 3"
