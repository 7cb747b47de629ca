//go:build mage

package main

import (
	"os"
	"strings"
	"testing"
)

// Each command that reads a file reports a missing file, and where to look for it, before it
// contacts a board or writes anything.
func TestFilesThatAreNotHere(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("hosts.yml", []byte("all: {hosts: {a: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, none, board, host, hosts, disk, branch := t.Context(), "no/such", "virt", "root@127.0.0.1:1", "hosts.yml", "disk.img", "scarthgap"
	here, whole := `read "no/such" on this machine: no such file or directory`+"\nnext: ls .", `read "`+dir+`/no/such" on this machine: no such file or directory`+"\nnext: ls "+dir
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"bfb:list", BFB{}.List(none, nil, nil), here},
		{"bfb:check", BFB{}.Check(ctx, none), here},
		{"bfb:extract", BFB{}.Extract(ctx, none, nil, nil), here},
		{"bfb:make", BFB{}.Make(ctx, "out.bfb", &none, nil, nil, nil, nil, nil), here},
		{"pack", Pack(ctx, none, nil, nil, nil), here},
		{"bmap", Bmap(ctx, none, nil, nil), here},
		{"doctor -conf", Doctor(ctx, nil, &none, &branch, nil, nil), here},
		{"update", Update(ctx, board, host, none, nil, nil, nil, nil, nil, nil, nil), here},
		{"deploy:container", Deploy{}.Container(ctx, board, host, none, nil, nil, nil, nil, nil, nil, nil), whole},
		{"deploy:run", Deploy{}.Run(ctx, board, host, "oci-dir:"+none, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil), whole},
		{"fleet:list", Fleet{}.List(none, nil, nil), here},
		{"fleet:smoke", Fleet{}.Smoke(ctx, board, none, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil), here},
		{"fleet:update", Fleet{}.Update(ctx, board, hosts, none, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil), here},
		{"flash -image", Flash(ctx, board, disk, &none, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil), whole},
		{"flash -signers", Flash(ctx, board, disk, &hosts, nil, nil, nil, nil, nil, &none, nil, nil, nil, nil, nil, nil, nil), here},
	} {
		if tt.err == nil || !strings.HasSuffix(tt.err.Error(), tt.want) || strings.Count(tt.err.Error(), none) != 1 {
			t.Errorf("%s: %v; want it to end with %s, and the name once", tt.name, tt.err, tt.want)
		}
	}
}
