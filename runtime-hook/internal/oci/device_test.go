package oci

import "testing"

func TestDevices(t *testing.T) {
	const node = `{"path":"/dev/a","type":"c","major":10,"minor":3}`
	tests := []struct {
		name, nodes, rules string
		node, allowed      bool
	}{
		{"nothing", ``, ``, false, false},
		{"node", node, `{"allow":false,"access":"rwm"}`, true, false},
		{"another device's node", `{"path":"/dev/a","type":"c","major":10,"minor":4}`, ``, false, false},
		{"a disk", `{"path":"/dev/a","type":"b","major":10,"minor":3}`, ``, false, false},
		{"rule", ``, `{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":10,"minor":3,"access":"rw"}`, false, true},
		{"the last rule counts", ``, `{"allow":true,"type":"c","major":10,"minor":3,"access":"rwm"},{"allow":false,"access":"rwm"}`, false, false},
		{"everything", ``, `{"allow":true,"access":"rwm"}`, false, true},
		{"everything, as runc writes it", ``, `{"allow":true,"type":"a","major":-1,"minor":-1,"access":"rwm"}`, false, true},
		{"all minors", ``, `{"allow":true,"type":"c","major":10,"access":"rwm"}`, false, true},
		{"read only", ``, `{"allow":true,"type":"c","major":10,"access":"r"}`, false, false},
		{"two rules", ``, `{"allow":true,"type":"c","major":10,"access":"r"},{"allow":true,"type":"c","minor":3,"access":"w"}`, false, true},
		{"mknod taken back", ``, `{"allow":true,"access":"rwm"},{"allow":false,"access":"m"}`, false, true},
		{"a disk's rule", ``, `{"allow":true,"type":"b","major":10,"minor":3,"access":"rwm"}`, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := ParseConfig([]byte(`{"root":{"path":"r"},"linux":{"devices":[`+tt.nodes+`],"resources":{"devices":[`+tt.rules+`]}}}`), "/bundle")
			if err != nil {
				t.Fatal(err)
			}
			if got := c.HasNode("/dev/a", 10, 3); got != tt.node {
				t.Errorf("HasNode = %v; want %v", got, tt.node)
			}
			if got := c.Allows(10, 3); got != tt.allowed {
				t.Errorf("Allows = %v; want %v", got, tt.allowed)
			}
		})
	}
}
