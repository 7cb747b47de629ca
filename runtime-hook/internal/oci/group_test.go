package oci

import "testing"

func TestMissingGroup(t *testing.T) {
	const userNamespace = `"namespaces":[{"type":"user"}]`
	tests := []struct {
		name, process, linux string
		want                 uint32
		wantOK               bool
	}{
		{"no member", `{"user":{"uid":1,"gid":1}}`, `{}`, 44, true},
		{"no user", `{}`, `{}`, 44, true},
		{"the first group", `{"user":{"gid":44}}`, `{}`, 0, false},
		{"one of more", `{"user":{"additionalGids":[1,44]}}`, `{}`, 0, false},
		{"a namespace that has it by another number", `{}`, `{` + userNamespace + `,"gidMappings":[{"containerID":0,"hostID":100000,"size":65536},{"containerID":70000,"hostID":40,"size":5}]}`, 70004, true},
		{"a namespace that has it not", `{}`, `{` + userNamespace + `,"gidMappings":[{"containerID":0,"hostID":45,"size":65536}]}`, 0, false},
		{"a range that ends before it", `{}`, `{` + userNamespace + `,"gidMappings":[{"containerID":0,"hostID":40,"size":4}]}`, 0, false},
		{"another container's namespace", `{}`, `{"namespaces":[{"type":"user","path":"/proc/1/ns/user"}]}`, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := ParseConfig([]byte(`{"root":{"path":"r"},"process":`+tt.process+`,"linux":`+tt.linux+`}`), "/b")
			if err != nil {
				t.Fatal(err)
			}
			if got, ok := c.MissingGroup(44); got != tt.want || ok != tt.wantOK {
				t.Errorf("MissingGroup(44) = %d, %v; want %d, %v", got, ok, tt.want, tt.wantOK)
			}
		})
	}
}
