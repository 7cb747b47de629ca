package oci

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestDeviceMounts(t *testing.T) {
	const at = "/var/run/nvidia-container-devices/"
	tests := []struct {
		source, destination string
		want                []string
	}{
		{"/dev/null", at + "all", []string{"all"}},
		{"/dev/./null", at + "/0/", []string{"0"}},
		{"/dev/null", at + "cdi/nvidia.com/gpu/0", []string{"nvidia.com/gpu=0"}},
		{"/dev/null", at + "cdi/nvidia.com/gpu=all", []string{"nvidia.com/gpu=all"}},
		{"/dev/null", at + "cdi/x", []string{"x"}},
		{"/dev/null", at + "imex/0", nil},
		{"/dev/null", at, nil},
		{"/dev/null", at + "../0", nil},
		{"/dev/null", at[:len(at)-1] + "2/all", nil},
		{"/dev/zero", at + "all", nil},
		{"", at + "all", nil},
		{"/dev/null", "", nil},
	}
	for _, tt := range tests {
		m := specs.Mount{Source: tt.source, Destination: tt.destination}
		data, err := json.Marshal(specs.Spec{Root: &specs.Root{Path: "r"}, Mounts: []specs.Mount{m, m}})
		if err != nil {
			t.Fatal(err)
		}
		c, err := ParseConfig(data, "/b")
		if err != nil || !slices.Equal(c.DeviceMounts, tt.want) {
			t.Errorf("a mount of %s at %s names %q, %v; want %q", tt.source, tt.destination, c.DeviceMounts, err, tt.want)
		}
	}
}
