SUMMARY = "b"
do_compile[depends] = "liba:do_share"
