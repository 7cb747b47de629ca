package release

import (
	"bytes"
	"runtime/debug"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// billOfMaterials returns a CycloneDX list of a program's modules, from the go command's record.
func (p product) billOfMaterials(arch string) ([]byte, error) {
	info := p.programs[arch].info
	own := moduleComponent(debug.Module{Path: info.Main.Path, Version: p.version}, "Apache-2.0")
	own.Type = cdx.ComponentTypeApplication
	own.Properties = &[]cdx.Property{{Name: "vcs.revision", Value: p.id}, {Name: "go.arch", Value: "linux/" + arch}}
	parts := []cdx.Component{moduleComponent(debug.Module{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}, "BSD-3-Clause")}
	refs := []string{parts[0].BOMRef}
	for _, m := range info.Deps {
		part := moduleComponent(*m, p.licences[m.Path])
		parts, refs = append(parts, part), append(refs, part.BOMRef)
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: p.date.Format(time.RFC3339), Component: &own}
	bom.Components = &parts
	bom.Dependencies = &[]cdx.Dependency{{Ref: own.BOMRef, Dependencies: &refs}}
	var b bytes.Buffer
	err := cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return b.Bytes(), err
}

// moduleComponent returns the CycloneDX component of a Go module, with its checksum of go.sum.
func moduleComponent(m debug.Module, licence string) cdx.Component {
	url := "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	c := cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: url, Name: m.Path, Version: m.Version, PackageURL: url}
	if licence != "" {
		c.Licenses = &cdx.Licenses{{Expression: licence}}
	}
	if m.Sum != "" {
		c.Properties = &[]cdx.Property{{Name: "go.sum", Value: m.Sum}}
	}
	return c
}
